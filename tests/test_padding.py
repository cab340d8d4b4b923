"""Words of a pixel, by hand."""

from gradweave.model.padding import channel_words, padded, pixel_words, words_of_a_word


def test_a_run_begins_a_word_and_ends_in_pad_lanes():
    assert channel_words(5, (2, 1)) == ((0, 1), (2, 3), (4, None))
    assert channel_words(6, (2, 2)) == ((0, 1), (2, None), (3, 4), (5, None))
    assert channel_words(6, (3, 2)) == ((0, 1, 2), (3, 4, 5))


def test_layouts_know_their_words():
    for channels, layout in ((5, (2, 1)), (6, (2, 2)), (6, (3, 2)), (17, (5, 1)), (4, (1, 4))):
        words = channel_words(channels, layout)
        assert pixel_words(channels, layout) == len(words)
        assert padded(channels, layout) == any(None in word for word in words)


def test_narrow_takers_need_several_words():
    assert words_of_a_word(8, (4, 1), (2, 1)) == 2
    assert words_of_a_word(6, (3, 1), (2, 1)) == 2
    assert words_of_a_word(17, (9, 1), (1, 1)) == 9  # 17 words for 2
    assert words_of_a_word(17, (1, 1), (9, 1)) == 1
