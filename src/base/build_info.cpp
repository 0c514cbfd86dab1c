#include "base/build_info.h"

#include <fmt/format.h>
#include <sys/utsname.h>

namespace longreach {

BuildInfo build_info() {
    utsname name{};
    uname(&name);
    return {LONGREACH_VERSION, LONGREACH_COMPILER, LONGREACH_BUILD_TYPE, LONGREACH_FLAGS,
            fmt::format("{} {}", name.sysname, name.machine)};
}

}  // namespace longreach
