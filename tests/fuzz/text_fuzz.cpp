// Text for `data tokenize`: a plain file or an archive, or JSON lines, as the first byte says.
#include "text/text_source.h"

#include "text/unpacker.h"
#include "fuzz/target.h"

using namespace longreach;
using namespace longreach::fuzz;

namespace {

class Collector final : public text::DocumentSink {
  public:
    bool begin(const std::string&, uint64_t) override {
        holds(!open_, "a document begins inside another");
        open_ = true;
        return ++documents_ < 1000;
    }
    void text(std::string_view piece) override { all_ += piece; }
    void end() override { open_ = false; }
    const std::string& all() const { return all_; }

  private:
    bool open_ = false;
    int documents_ = 0;
    std::string all_;
};

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Scratch scratch;
    if (size == 0) return 0;
    const bool lines = (data[0] & 1) != 0;
    const std::string_view text = text_of(data + 1, size - 1);
    text::SourceOptions options;
    options.strip_licence = (data[0] & 2) != 0;
    const text::SourceFile source{scratch.put("text", text), lines ? "text.jsonl" : "text.txt", size - 1,
                                  (data[0] & 4) != 0};
    Collector sink;
    const bool good = accepts([&] {
        const text::SourceOutcome outcome = text::read_source(source, options, sink);
        if (!lines && !options.strip_licence && outcome == text::SourceOutcome::done)
            holds(sink.all() == text || !text::archive_kind(text).empty(), "text changed on the way");
    });
    holds(good || lines || !text::archive_kind(text).empty(), "a plain text is refused");
    holds(text::licence_end(text) <= text.size(), "a licence ends beyond the text");
    return 0;
}
