#include "simt/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "simt/address_sanitizer.h"
#include "simt/machine.h"

namespace longreach::simt {

namespace {

constexpr unsigned char red_byte = 0xa7;

}  // namespace

DeviceMemory the_device_memory;

void* DeviceMemory::allocate(size_t bytes) {
    if (bytes == 0) return nullptr;
    if (region_ == 0) {
        void* at = mmap(nullptr, region_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) throw std::bad_alloc();
        region_ = reinterpret_cast<uintptr_t>(at);
        used_ = page;
    }
    Allocation fresh;
    fresh.bytes = bytes;
    fresh.pages = region_ + used_;
    fresh.page_bytes = (bytes + 2 * red_zone + page - 1) / page * page;
    if (used_ + fresh.page_bytes + page > region_bytes) throw std::bad_alloc();
    fresh.base = fresh.pages + red_zone;
    fresh.number = ++count_;
    fresh.shadow = std::make_unique<Shadow>();
    fresh.shadow->attach(fresh.base, bytes, false);
    used_ += fresh.page_bytes + page;
    in_use_ += bytes;
    ++living_;
    auto* pages = reinterpret_cast<char*>(fresh.pages);
    if (mprotect(pages, fresh.page_bytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    std::memset(pages, red_byte, red_zone);
    fill_poison(pages + red_zone, bytes, poison_device);
    std::memset(pages + red_zone + bytes, red_byte, fresh.page_bytes - red_zone - bytes);
    forbid(pages, red_zone);
    forbid(pages + red_zone + bytes, fresh.page_bytes - red_zone - bytes);
    if (opened_ == 0) mprotect(pages, fresh.page_bytes, PROT_NONE);
    uintptr_t base = fresh.base;
    allocations_.emplace(base, std::move(fresh));
    return reinterpret_cast<void*>(base);
}

bool DeviceMemory::free(void* memory) {
    if (memory == nullptr) return true;
    auto at = allocations_.find(reinterpret_cast<uintptr_t>(memory));
    if (at == allocations_.end() || at->second.freed) return false;
    Allocation& old = at->second;
    // The pages go back, the addresses stay without access: a use after the free is seen.
    void* pages = reinterpret_cast<void*>(old.pages);
    madvise(pages, old.page_bytes, MADV_DONTNEED);
    mprotect(pages, old.page_bytes, PROT_NONE);
    forbid(pages, old.page_bytes);
    old.freed = true;
    in_use_ -= old.bytes;
    --living_;
    old.shadow.reset();
    return true;
}

DeviceMemory::Allocation* DeviceMemory::find(uintptr_t address) {
    for (Allocation* one : recent_)
        if (one != nullptr && address - one->pages < one->page_bytes) return one;
    auto after = allocations_.upper_bound(address + red_zone);  // the red zone in front belongs to it
    if (after == allocations_.begin()) return nullptr;
    Allocation* found = &std::prev(after)->second;
    recent_[replaced_++ % recent_.size()] = found;
    return found;
}

DeviceMemory::Allocation& DeviceMemory::checked(const void* at, size_t bytes, const char* what) {
    auto address = reinterpret_cast<uintptr_t>(at);
    Allocation* in = contains(address) ? find(address) : nullptr;
    if (in == nullptr || in->freed || address < in->base || address + bytes > in->base + in->bytes) {
        Finding finding{Kind::api, std::string(what) + " of " + std::to_string(bytes) + " bytes: " +
                                       (contains(address) ? name(address) : std::string("no device memory"))};
        std::string text = finding.message;
        report(std::move(finding));
        throw Failure(text);
    }
    return *in;
}

std::string DeviceMemory::name(uintptr_t address) {
    Allocation* in = contains(address) ? find(address) : nullptr;
    if (in == nullptr) return "an address outside of device memory";
    return "byte " + std::to_string(static_cast<ptrdiff_t>(address - in->base)) + " of device allocation " +
           std::to_string(in->number) + " (" + std::to_string(in->bytes) + " bytes" +
           (in->freed ? ", freed)" : ")");
}

void DeviceMemory::open(int change) {
    bool was = opened_ > 0;
    opened_ += change;
    if (was == (opened_ > 0)) return;
    for (auto& [base, allocation] : allocations_)
        if (!allocation.freed)
            mprotect(reinterpret_cast<void*>(allocation.pages), allocation.page_bytes,
                     was ? PROT_NONE : PROT_READ | PROT_WRITE);
}

void DeviceMemory::check_red_zones() {
    for (auto& [base, allocation] : allocations_) {
        if (allocation.freed) continue;
        uintptr_t end = allocation.pages + allocation.page_bytes;
        for (uintptr_t at = allocation.pages; at < end; ++at) {
            if (at == allocation.base) at += allocation.bytes;
            if (at == end) break;
            if (*reinterpret_cast<const unsigned char*>(at) == red_byte) continue;
            machine().found({Kind::global_out_of_bounds, name(at) + " was written in this launch"});
            std::memset(reinterpret_cast<void*>(at), red_byte, 1);
            break;
        }
    }
}

void* device_malloc(size_t bytes) {
    return device_memory().allocate(bytes);
}

void device_free(void* memory) {
    if (!device_memory().free(memory)) {
        report({Kind::api, "free of a pointer that is no living allocation"});
        throw Failure("free of a pointer that is no living allocation");
    }
}

void copy_to_device(void* to, const void* from, size_t bytes) {
    if (bytes == 0) return;
    DeviceMemory::Open open(device_memory());
    auto& in = device_memory().checked(to, bytes, "copy to the device");
    std::memcpy(to, from, bytes);
    in.shadow->set_initialised(reinterpret_cast<uintptr_t>(to), bytes);
}

void copy_to_host(void* to, const void* from, size_t bytes) {
    if (bytes == 0) return;
    DeviceMemory::Open open(device_memory());
    device_memory().checked(from, bytes, "copy to the host");
    std::memcpy(to, from, bytes);
}

void copy_on_device(void* to, const void* from, size_t bytes) {
    if (bytes == 0) return;
    DeviceMemory::Open open(device_memory());
    device_memory().checked(from, bytes, "copy from the device");
    auto& in = device_memory().checked(to, bytes, "copy to the device");
    std::memmove(to, from, bytes);
    in.shadow->set_initialised(reinterpret_cast<uintptr_t>(to), bytes);
}

void set_device(void* to, int value, size_t bytes) {
    if (bytes == 0) return;
    DeviceMemory::Open open(device_memory());
    auto& in = device_memory().checked(to, bytes, "set of memory");
    std::memset(to, value, bytes);
    in.shadow->set_initialised(reinterpret_cast<uintptr_t>(to), bytes);
}

bool host_can_read(const void* memory) {
    int ends[2];
    if (pipe(ends) != 0) return false;
    ssize_t written = write(ends[1], memory, 1);
    close(ends[0]);
    close(ends[1]);
    return written == 1;
}

}  // namespace longreach::simt
