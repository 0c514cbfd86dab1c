// Device memory of the harness: a range of addresses of its own, so that a pointer tells what it is, each
// allocation between red zones and pages without access, nothing accessible while no kernel or copy runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "simt/shadow.h"

namespace longreach::simt {

class DeviceMemory {
  public:
    struct Allocation {
        uintptr_t base = 0;
        size_t bytes = 0;
        uintptr_t pages = 0;
        size_t page_bytes = 0;
        int number = 0;
        bool freed = false;
        std::unique_ptr<Shadow> shadow;
    };
    // Memory is accessible while one of these lives.
    class Open {
      public:
        explicit Open(DeviceMemory& memory) : memory_(memory) { memory_.open(+1); }
        ~Open() { memory_.open(-1); }
        Open(const Open&) = delete;
        Open& operator=(const Open&) = delete;

      private:
        DeviceMemory& memory_;
    };

    void* allocate(size_t bytes);
    bool free(void* memory);  // false: no such allocation
    bool contains(uintptr_t address) const { return address - region_ < region_bytes; }
    Allocation* find(uintptr_t address);  // the last allocation at or below; null if there is none
    // Throws Failure unless [at, at + bytes) lies in one living allocation.
    Allocation& checked(const void* at, size_t bytes, const char* what);
    std::string name(uintptr_t address);  // "byte 12 of device allocation 3 (64 bytes)"
    void check_red_zones();
    size_t in_use() const { return in_use_; }  // bytes
    size_t living() const { return living_; }  // allocations

    static constexpr size_t region_bytes = size_t{1} << 40, red_zone = 256, page = 4096;

  private:
    void open(int change);

    uintptr_t region_ = 0;
    size_t used_ = 0, in_use_ = 0, living_ = 0;
    int opened_ = 0, count_ = 0;
    std::map<uintptr_t, Allocation> allocations_;
    // A kernel alternates between a few allocations.
    std::array<Allocation*, 4> recent_{};
    size_t replaced_ = 0;
};
extern DeviceMemory the_device_memory;
inline DeviceMemory& device_memory() {
    return the_device_memory;
}

}  // namespace longreach::simt
