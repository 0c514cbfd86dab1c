// A library of NVIDIA's, opened when it is first needed: the program starts on machines without it.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace longreach {

class ToolkitLibrary {
  public:
    // Opens the first of `files` that exists and is usable, looking where the system's loader looks, in the toolkit's
    // folders and in NVIDIA's Python packages. unusable: the reason why an open library will not do, such as "version 11"; empty if it
    // will. Error(device) names `wanted` ("NCCL 2.14 or newer") and every place that was tried.
    ToolkitLibrary(const std::vector<std::string>& files, const std::string& wanted,
                   const std::function<std::string(const ToolkitLibrary&)>& unusable);

    void* symbol(const char* name) const;  // null if the library has none of this name
    // Error(device) if the library has no such function.
    template <class Function>
    void find(Function& function, const char* name) const {
        function = reinterpret_cast<Function>(required_symbol(name));
    }

  private:
    void* required_symbol(const char* name) const;

    std::string wanted_, path_;
    void* handle_ = nullptr;  // never closed: the functions stay in use
};

}  // namespace longreach
