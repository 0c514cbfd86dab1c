// A safetensors file. The data of every tensor that the reader offers lies inside the file.
#include "fuzz/target.h"
#include "io/safetensors.h"

using namespace longreach;
using namespace longreach::fuzz;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Scratch scratch;
    const std::string path = scratch.put("model.safetensors", text_of(data, size));
    accepts([&] {
        const io::SafetensorsFile file = io::SafetensorsFile::open(path, io::Links::refuse);
        for (const io::StoredTensor& tensor : file.tensors()) {
            holds(tensor.bytes() <= size, "a tensor larger than its file");
            std::string bytes(static_cast<size_t>(tensor.bytes()), '\0');
            holds(accepts([&] { file.read(tensor, bytes.data(), bytes.size()); }), "a tensor cannot be read");
            holds(file.find(tensor.name) != nullptr, "a tensor is not found by its name");
        }
    });
    return 0;
}
