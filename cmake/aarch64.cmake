# For 64-bit ARM on another machine: Debian's cross compiler, and QEMU for the tests. The libraries without code of their
# own (fmt and spdlog as headers, CLI11, nlohmann/json, doctest) are this machine's; the others are left out.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu)
file(GLOB hosts_packages LIST_DIRECTORIES true /usr/lib/${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu/cmake)
set(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit ON) # this machine's
set(CMAKE_DISABLE_FIND_PACKAGE_Gloo ON)
foreach(name fmt spdlog)
    set(${name}_DIR ${hosts_packages}/${name})
endforeach()
