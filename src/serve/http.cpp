#include "serve/http.h"

#include <dlfcn.h>

#include "base/error.h"

namespace longreach::serve {

namespace {

constexpr const char* module_name = "longreach_http.so";

// Found by the program's run path: in its directory, or where an installation has its modules.
OpenHttp find_module() {
    void* module = ::dlopen(module_name, RTLD_NOW | RTLD_LOCAL);
    void* symbol = module != nullptr ? ::dlsym(module, "longreach_open_http") : nullptr;
    if (symbol == nullptr)
        throw Error(ExitCode::usage, fmt::format("serve needs {}: {}", module_name, ::dlerror()),
                    "it must be in the program's directory or in ../lib/longreach; a build makes it where "
                    "cpp-httplib is installed (libcpp-httplib-dev on Debian and Ubuntu) or can be fetched");
    return reinterpret_cast<OpenHttp>(symbol);
}

}  // namespace

std::unique_ptr<HttpServer> open_http(const HttpOptions& options, HttpHandler& handler) {
    const OpenHttp open = find_module();
    std::unique_ptr<HttpServer> server;
    std::string problem;
    open(options, handler, server, problem);
    require(server != nullptr, ExitCode::usage, "cannot listen on {}:{}: {}", options.host, options.port,
            problem);
    return server;
}

}  // namespace longreach::serve
