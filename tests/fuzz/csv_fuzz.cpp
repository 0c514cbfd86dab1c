// A table as the report reads it.
#include "fuzz/target.h"
#include "io/csv.h"

using namespace longreach;
using namespace longreach::fuzz;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Scratch scratch;
    const std::string path = scratch.put("val.csv", text_of(data, size));
    accepts([&] {
        const std::optional<io::CsvTable> table = io::CsvTable::read(path);
        holds(table.has_value(), "a file that exists is missing");
        const size_t columns[] = {table->column("step"), table->column("loss"), table->required("length")};
        for (size_t row = 0; row < table->rows(); ++row)
            for (const size_t column : columns) {
                holds(table->text(row, column).size() <= size, "a cell larger than its file");
                accepts([&] { table->integer(row, column); });
                accepts([&] { table->number(row, column); });
            }
    });
    return 0;
}
