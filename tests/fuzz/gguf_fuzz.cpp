// A GGUF file: its tensors lie inside the file and have values; its metadata are settings of a model or are refused, and its
// tokenizer is one, or has a problem.
#include "exchange/family.h"
#include "exchange/gguf_model.h"
#include "fuzz/target.h"

using namespace longreach;
using namespace longreach::fuzz;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Scratch scratch;
    const std::string path = scratch.put("model.gguf", text_of(data, size));
    accepts([&] {
        const auto file =
            std::make_shared<const exchange::GgufFile>(exchange::GgufFile::open(path, io::Links::refuse));
        for (const exchange::GgufTensor& tensor : file->tensors()) {
            holds(tensor.begin <= size && tensor.bytes <= size - tensor.begin, "a tensor outside its file");
            holds(file->read(tensor).size() * tensor.type->bytes ==
                      tensor.bytes * static_cast<uint64_t>(tensor.type->elements),
                  "a tensor of another size");
        }
        const exchange::TokenizerFiles tokenizer = exchange::gguf_tokenizer(*file);
        holds(tokenizer.made.empty() == tokenizer.description.empty(), "a tokenizer without its files");
        const exchange::Settings settings = exchange::gguf_settings(*file);
        const exchange::Weights weights = exchange::gguf_weights(file, settings);
        for (const auto& [name, tensor] : weights.tensors()) tensor.read();
        const exchange::Foreign foreign = exchange::read_form(settings);
        holds(foreign.model.find("train_context") != nullptr, "a model without a context");
    });
    return 0;
}
