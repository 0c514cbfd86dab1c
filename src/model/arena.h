// Device memory, planned before the first step.
//
// A reservation is an offset, so tensors can be handed out, sliced and kept before memory exists. commit()
// allocates the peak of all reservations at once. Every reservation has a name; the printed plan lists what
// the process holds after commit().
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace longreach::model {

class Arena {
  public:
    explicit Arena(Ops& ops) : ops_(ops) {}
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    // Names the purpose of the following reservations ("activations"), one line of the printed plan.
    void group(std::string name) { group_ = std::move(name); }
    Tensor reserve(const std::string& name, DType dtype, std::initializer_list<int64_t> dims);

    // Reserves a tensor of the type in which the device keeps activations and their gradients.
    Tensor activation(const std::string& name, std::initializer_list<int64_t> dims) {
        return reserve(name, traits().activations, dims);
    }
    DeviceTraits traits() const { return ops_.traits(); }

    // Memory reserved after mark() may be given out again after rewind(): parts of a run that never live at
    // the same time (training activations, evaluation activations) share it.
    int64_t mark() const { return offset_; }
    void rewind(int64_t mark) { offset_ = mark; }
    // Calls plan(0) to plan(count - 1), all over the same memory; later reservations begin after the largest.
    template <class Plan>
    void overlay(size_t count, Plan plan) {
        const int64_t place = offset_;
        int64_t end = place;
        for (size_t i = 0; i < count; ++i) {
            rewind(place);
            plan(i);
            end = std::max(end, offset_);
        }
        rewind(end);
    }

    void commit();  // allocates; no reservations after this
    int64_t bytes() const { return peak_; }

    struct Entry {
        std::string group, name;
        int64_t begin, bytes;
    };
    const std::vector<Entry>& entries() const { return entries_; }
    // One line per group: bytes, and the largest reservations in it.
    std::string table() const;

  private:
    Ops& ops_;
    std::string group_;
    std::vector<Entry> entries_;
    int64_t offset_ = 0, peak_ = 0;
    std::byte* memory_ = nullptr;  // reserved tensors point to this member
    bool committed_ = false;
};

}  // namespace longreach::model
