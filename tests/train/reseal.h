// Checkpoints with a changed file and a matching manifest.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

#include "io/checkpoint_dir.h"
#include "io/temp_dir.h"

namespace longreach::test {

inline void reseal(const std::string& run, int64_t step, const std::string& name,
                   const std::function<void(std::string&)>& change) {
    const std::string root = run + "/checkpoints";
    const io::Checkpoint saved = io::verify_checkpoint(root, step);
    io::CheckpointWriter writer(root, step);
    for (const io::ManifestEntry& entry : saved.files) {
        std::string text = get(saved.file(entry.name));
        if (entry.name == name) change(text);
        writer.add_text(entry.name, text);
    }
    writer.commit({10, {0}}, [](const std::string&) {});
}

// Sets one value of a tensor in a safetensors file.
inline void set_value(std::string& file, const std::string& path, const std::string& tensor, int64_t index,
                      float value) {
    const io::SafetensorsFile parsed = io::SafetensorsFile::open(path, io::Links::refuse);
    const io::StoredTensor* found = parsed.find(tensor);
    check(found != nullptr, "no tensor {}", tensor);
    // Tensors are contiguous and end where the file ends.
    uint64_t data_bytes = 0;
    for (const io::StoredTensor& t : parsed.tensors()) data_bytes = std::max(data_bytes, t.end);
    const size_t at = file.size() - data_bytes + found->begin + 4 * static_cast<size_t>(index);
    std::memcpy(file.data() + at, &value, sizeof value);
}

}  // namespace longreach::test
