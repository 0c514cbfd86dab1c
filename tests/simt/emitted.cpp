#include "simt/emitted.h"

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ptx/machine.h"
#include "simt/memory.h"
#include "simt/simt.h"
#include "simt/tensor_maps.h"

namespace longreach::simt {

namespace {

std::string contents_of(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw Failure("cannot read " + path.string());
    return {std::istreambuf_iterator<char>(file), {}};
}

// Both compilers mangle alike, but for the name of an anonymous namespace: nvcc puts a hash of the file there.
std::string common_name(const std::string& mangled) {
    std::string name;
    for (size_t i = 0; i < mangled.size();) {
        if (!std::isdigit(static_cast<unsigned char>(mangled[i]))) {
            name += mangled[i++];
            continue;
        }
        const size_t digits = mangled.find_first_not_of("0123456789", i);
        const std::string number = mangled.substr(i, digits - i);
        name += mangled.compare(digits, 11, "_GLOBAL__N_") == 0 ? "" : number;
        i = digits;
        if (mangled.compare(digits, 11, "_GLOBAL__N_") != 0) continue;
        name += "12_GLOBAL__N_1";
        i += std::stoul(number);
    }
    return name;
}

struct Symbol {
    std::string name, file;  // file: the source of a symbol that is local to it
};

// The functions of this program by their offset from where it is loaded: the symbol table of its file.
std::map<uintptr_t, Symbol> functions_of_this_program() {
    const std::string file = contents_of("/proc/self/exe");
    const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(file.data());
    const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(file.data() + header->e_shoff);
    std::map<uintptr_t, Symbol> functions;
    for (size_t s = 0; s < header->e_shnum; ++s) {
        if (sections[s].sh_type != SHT_SYMTAB) continue;
        const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(file.data() + sections[s].sh_offset);
        const char* names = file.data() + sections[sections[s].sh_link].sh_offset;
        std::string source;
        for (size_t i = 0; i < sections[s].sh_size / sizeof *symbols; ++i) {
            const auto& symbol = symbols[i];
            const auto type = symbol.st_info & 15;
            const bool local = symbol.st_info >> 4 == STB_LOCAL;
            if (type == STT_FILE) source = names + symbol.st_name;
            if (type == STT_FUNC) functions[symbol.st_value] = {names + symbol.st_name, local ? source : ""};
        }
    }
    return functions;
}

// The program is the first object of the list.
uintptr_t load_address() {
    uintptr_t base = 0;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* out) {
            *static_cast<uintptr_t*>(out) = info->dlpi_addr;
            return 1;
        },
        &base);
    return base;
}

// The PTX of a source and where its kernels stand. A kernel is parsed when it is launched first: most of them are not.
class Source {
  public:
    Source(std::string path, std::string text) : path_(std::move(path)), text_(std::move(text)) {
        static const std::string_view word = ".entry ";
        for (size_t at = text_.find(word); at != std::string::npos; at = text_.find(word, at)) {
            const size_t begin = at + word.size();
            Extent kernel{at, text_.find('{', begin),
                          text_.substr(begin, text_.find_first_of(" (", begin) - begin)};
            int depth = 0;
            do {
                kernel.end = text_.find_first_of("{}", kernel.end);
                if (kernel.end == std::string::npos) throw Failure(path_ + ": a kernel without an end");
                depth += text_[kernel.end++] == '{' ? 1 : -1;
            } while (depth > 0);
            at = kernel.end;
            kernels_.push_back(std::move(kernel));
        }
    }
    std::vector<std::string> kernels() const {
        std::vector<std::string> names;
        for (const Extent& kernel : kernels_) names.push_back(kernel.name);
        return names;
    }
    // What is outside of kernels, and this kernel, on the lines where it stands.
    ptx::Module with_only(const std::string& name) const {
        std::string text;
        size_t at = 0;
        for (const Extent& kernel : kernels_) {
            text.append(text_, at, kernel.begin - at);
            if (kernel.name == name)
                text.append(text_, kernel.begin, kernel.end - kernel.begin);
            else
                text.append(static_cast<size_t>(std::count(&text_[kernel.begin], &text_[kernel.end], '\n')),
                            '\n');
            at = kernel.end;
        }
        return ptx::parse(path_, text.append(text_, at));
    }

  private:
    struct Extent {
        size_t begin, end;
        std::string name;
    };
    std::string path_, text_;
    std::vector<Extent> kernels_;
};

struct Kernel {
    ptx::Module module{};  // of its source, with no other kernel
    std::shared_ptr<const ptx::Program> program{};
};

class Emitted {
  public:
    explicit Emitted(const std::string& directory) {
        // Which kernels this program ran, "SOURCE ENTRY" a line.
        if (const char* record = std::getenv("LONGREACH_PTX_RECORD")) {
            record_.open(record);
            if (!record_) throw Failure("cannot write " + std::string(record));
        }
        for (const auto& file : std::filesystem::directory_iterator(directory)) {
            if (file.path().extension() != ".ptx") continue;
            const std::string stem = file.path().stem().string();
            const Source& source =
                sources_.try_emplace(stem, file.path().string(), contents_of(file.path())).first->second;
            for (const std::string& name : source.kernels())
                kernels_[common_name(name)].emplace_back(stem, name);
        }
    }

    const Kernel& of(const void* code) {
        const auto known = by_code_.find(code);
        if (known != by_code_.end()) return known->second;
        const auto symbol = functions_.find(reinterpret_cast<uintptr_t>(code) - base_);
        if (symbol == functions_.end()) throw Failure("a kernel without a name in the program's symbols");
        const auto& [name, file] = symbol->second;
        const auto found = kernels_.find(common_name(name));
        if (found == kernels_.end()) throw Failure("no PTX of " + name);
        // Kernels of one name in two files are told apart by the file.
        for (const auto& [stem, emitted_name] : found->second)
            if (found->second.size() == 1 || std::filesystem::path(file).stem() == stem) {
                Kernel& ready = by_code_[code];
                ready.module = sources_.at(stem).with_only(emitted_name);
                ready.program = ptx::prepare(ready.module, ready.module.entries.at(emitted_name));
                if (record_.is_open()) record_ << stem << ' ' << emitted_name << std::endl;
                return ready;
            }
        throw Failure("PTX of " + name + " is in several files");
    }

  private:
    std::map<std::string, Source> sources_;  // by the file's name without its extension
    std::map<std::string, std::vector<std::pair<std::string, std::string>>> kernels_;  // source and name
    std::map<uintptr_t, Symbol> functions_ = functions_of_this_program();
    uintptr_t base_ = load_address();
    std::map<const void*, Kernel> by_code_;
    std::ofstream record_;
};

DeviceMemory::Allocation& allocation_of(uintptr_t address, size_t bytes) {
    DeviceMemory& memory = device_memory();
    DeviceMemory::Allocation* in = memory.contains(address) ? memory.find(address) : nullptr;
    if (in == nullptr || in->freed || address < in->base || address + bytes > in->base + in->bytes)
        throw ptx::Fault(memory.name(address) + " is out of bounds");
    return *in;
}

}  // namespace

void run_emitted(const LaunchShape& shape) {
    static Emitted emitted(options().ptx);
    const Kernel& kernel = emitted.of(shape.kernel);
    ptx::Launch launch;
    launch.grid = {shape.grid.x, shape.grid.y, shape.grid.z};
    launch.block = {shape.block.x, shape.block.y, shape.block.z};
    launch.shared_bytes = shape.shared_bytes;
    const bool random = options().landing == Landing::random;
    launch.copies_land_late = random ? options().seed % 2 == 1 : options().landing == Landing::latest;
    launch.last_first = options().order == Order::reverse;
    shape.pack(shape.parameters, launch.parameters);
    ptx::Memory memory;
    memory.read = [](uintptr_t address, size_t bytes) {
        if (!allocation_of(address, bytes).shadow->initialised(address, bytes))
            throw ptx::Fault(device_memory().name(address) + " is read before it is written");
    };
    memory.written = [](uintptr_t address, size_t bytes) {
        allocation_of(address, bytes).shadow->set_initialised(address, bytes);
    };
    memory.tensor = [](const std::byte* bytes) {
        // Where the parameters lie here need not be aligned as a map is.
        alignas(128) std::byte map[128];
        std::memcpy(map, bytes, sizeof map);
        const TensorMap* inside = opened(map);
        if (inside == nullptr) throw ptx::Fault("a map that cuTensorMapEncodeTiled did not fill");
        ptx::Tensor tensor;
        tensor.base = inside->base;
        tensor.element = inside->element;
        tensor.swizzled = inside->swizzled != 0;
        for (size_t i = 0; i < 3; ++i) {
            tensor.size[i] = static_cast<int64_t>(inside->size[i]);
            tensor.box[i] = inside->box[i];
            if (i > 0) tensor.stride[i - 1] = inside->stride[i];
        }
        return tensor;
    };
    try {
        ptx::run(*kernel.program, launch, memory);
    } catch (const ptx::Fault& fault) {
        throw Failure(fault.what());
    }
}

}  // namespace longreach::simt
