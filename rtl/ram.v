// A memory with one write port and one synchronous read port, zero at power-up.
// Stands for every uninitialised memory of a design (see rtl/memories.py); maps to block or
// distributed RAM. TRANSPARENT: a read of the word that is being written gives the new word.
module gradweave_ram #(
    parameter WIDTH = 1,
    parameter DEPTH = 2,
    parameter ADDRESS = 1,
    parameter TRANSPARENT = 0
) (
    input wire clk,
    input wire write_enable,
    input wire [ADDRESS-1:0] write_address,
    input wire [WIDTH-1:0] write_data,
    input wire read_enable,
    input wire [ADDRESS-1:0] read_address,
    output reg [WIDTH-1:0] read_data
);
    reg [WIDTH-1:0] words[0:DEPTH-1];
    integer n;
    initial begin
        read_data = {WIDTH{1'b0}};
        for (n = 0; n < DEPTH; n = n + 1) words[n] = {WIDTH{1'b0}};
    end
    always @(posedge clk) begin
        if (write_enable) words[write_address] <= write_data;
        if (read_enable) begin
            if (TRANSPARENT != 0 && write_enable && write_address == read_address)
                read_data <= write_data;
            else
                read_data <= words[read_address];
        end
    end
endmodule
