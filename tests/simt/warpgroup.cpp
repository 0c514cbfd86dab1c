#include "simt/warpgroup.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "simt/machine.h"
#include "simt/tensor_maps.h"

namespace longreach::simt {

namespace {

constexpr uint32_t in_flight = 0x80000000u;

[[noreturn]] void wrong(Kind kind, const std::string& text, const Place& place, const Place& other = {}) {
    Machine& m = machine();
    Finding finding{kind, m.name_thread(m.block, m.current) + " at " + place.text() + ": " + text};
    finding.place = place.text();
    if (!(other == Place())) finding.other_place = other.text();
    m.fatal(std::move(finding));
}

float from_bf16(uint16_t bits) {
    uint32_t word = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
}

std::string hex(uint64_t bits) {
    char text[24];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(bits));
    return text;
}

struct Descriptor {
    size_t start, leading, stride;  // bytes
};

// Bits 0-13 the start, 16-29 the leading and 32-45 the stride offset, each in 16 bytes; 49-51 the base offset; 62-63 the
// swizzle, 1 that of 128 bytes. Tiles on 1024 bytes have no base offset.
Descriptor decode(uint64_t bits, int rows, bool strided, const Place& place) {
    auto refuse = [&](const std::string& text) {
        wrong(Kind::product_descriptor, "descriptor " + hex(bits) + " of an operand: " + text, place);
    };
    auto field = [&](int from) { return static_cast<size_t>(bits >> from & 0x3fff) * 16; };
    Descriptor of{field(0), field(16), field(32)};
    if (bits >> 62 != 1) refuse("no 128-byte swizzle, and the harness knows no other");
    if ((bits & 0x3fffc000c000c000) != 0) refuse("bits that mean nothing here, or a base offset");
    if (of.stride != 1024)
        refuse("groups of 8 rows are " + std::to_string(of.stride) + " bytes apart; tiles here have 1024");
    if (strided ? of.start % 1024 != 0 : of.start % 1024 >= 128)
        refuse("starts at byte " + std::to_string(of.start) +
               ", in a tile that is not on a multiple of 1024");
    if (strided && rows > 64 && of.leading % 1024 != 0)
        refuse("the next 64 columns are " + std::to_string(of.leading) + " bytes on, no multiple of 1024");
    return of;
}

// The chunks of an operand of `rows` rows along m or n, 16 along k. k contiguous: two chunks a row. Else row after row
// of k, its columns 8 by 8.
std::vector<uintptr_t> chunks_of(uint64_t bits, int rows, bool strided, const Place& place) {
    const Machine& m = machine();
    Descriptor of = decode(bits, rows, strided, place);
    std::vector<uintptr_t> chunks;
    auto add = [&](size_t offset) {
        size_t at = swizzled_128(of.start + offset);
        if (at + 16 > m.shape.shared_bytes)
            wrong(Kind::shared_out_of_bounds,
                  "an operand reaches to shared byte " + std::to_string(at + 16) + " of " +
                      std::to_string(m.shape.shared_bytes),
                  place);
        chunks.push_back(m.arena + at);
    };
    auto count = static_cast<size_t>(rows);
    if (!strided)
        for (size_t row = 0; row < count; ++row)
            for (size_t half = 0; half < 2; ++half) add(row / 8 * of.stride + row % 8 * 128 + half * 16);
    else
        for (size_t k = 0; k < 16; ++k)
            for (size_t n = 0; n < count; n += 8)
                add(n / 64 * of.leading + k / 8 * of.stride + k % 8 * 128 + n % 64 * 2);
    return chunks;
}

}  // namespace

Warpgroups::~Warpgroups() {
    if (marks_ != nullptr) munmap(marks_, marks_bytes_);
}

void Warpgroups::start_block(size_t threads, int registers) {
    // Products of a block that ended with a finding leave their marks.
    bool left = std::any_of(threads_.begin(), threads_.end(),
                            [](const ThreadState& one) { return !one.sums.empty(); });
    if (left && marks_ != nullptr) madvise(marks_, marks_bytes_, MADV_DONTNEED);
    active_ = false;
    threads_.assign(threads, ThreadState());
    groups_.assign((threads + lanes - 1) / lanes, Group());
    for (Group& group : groups_) group.registers = registers;
    // The block owns what it was launched with, whatever else the multiprocessor has: its pool begins empty.
    free_registers_ = 0;
    products_.clear();
    readers_.clear();
}

uint32_t* Warpgroups::marks_of(const void* at) {
    const FibreStacks& stacks = machine().stacks;
    auto address = reinterpret_cast<uintptr_t>(at);
    if (!stacks.contains(address)) return nullptr;
    if (marks_ == nullptr) {
        marks_bytes_ = FibreStacks::most * FibreStacks::stride;
        void* memory = mmap(nullptr, marks_bytes_, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        marks_ = static_cast<uint32_t*>(memory);
    }
    return marks_ + (address - stacks.base()) / 4;
}

void Warpgroups::mark_stack(uintptr_t address, size_t bytes, Use use, uintptr_t place) {
    Machine& m = machine();
    uint32_t* mark = marks_of(reinterpret_cast<void*>(address));
    uint32_t* end = mark + (address % 4 + bytes + 3) / 4;
    bool flies = false;
    for (; mark < end; ++mark) {
        flies |= (*mark & in_flight) != 0;
        *mark = (*mark & in_flight) | threads_[static_cast<size_t>(m.current)].fence;
    }
    if (!flies) return;
    Finding finding{Kind::product_in_flight, "", m.block, m.current};
    finding.place = Place(place).text();
    finding.message = m.name_thread(m.block, m.current) + (use == Use::read ? " reads at " : " writes at ") +
                      finding.place + " registers of a product that it has not waited for";
    for (const Issued& one : threads_[static_cast<size_t>(m.current)].issued) {
        const ProductCall& call = products_[one.product].call;
        finding.other_place = call.place.text();
        auto covers = [&](const void* at, size_t size) {
            return at != nullptr && address - reinterpret_cast<uintptr_t>(at) < size;
        };
        if (covers(one.d, static_cast<size_t>(call.columns) * 2) || covers(one.a, 16)) break;
    }
    finding.message += ", that of " + finding.other_place;
    m.found(std::move(finding));
}

void Warpgroups::fence() {
    Machine& m = machine();
    active_ = m.watching;
    threads_[static_cast<size_t>(m.current)].fence = ++fences_ & ~in_flight;
}

// Ordinary accesses of these registers have to lie before the last fence.
void Warpgroups::demand_fence(const void* at, size_t bytes, const char* what, const Place& place) {
    Machine& m = machine();
    uint32_t fence = threads_[static_cast<size_t>(m.current)].fence;
    bool missing = fence == 0;
    if (const uint32_t* mark = marks_of(at); mark != nullptr && active_)
        for (size_t i = 0; i < bytes / 4; ++i) missing |= mark[i] == fence;
    if (!missing) return;
    Finding finding{Kind::product_unfenced,
                    m.name_thread(m.block, m.current) + " at " + place.text() +
                        ": no products_fence() between the " + what +
                        " of the product and accesses of them before",
                    m.block, m.current};
    finding.place = place.text();
    m.found(std::move(finding));
}

// The thread's sums are the product's from here on; in their place lies poison.
void Warpgroups::take_sums(const ProductCall& call) {
    ThreadState& self = threads_[static_cast<size_t>(machine().current)];
    size_t count = static_cast<size_t>(call.columns) / 2;
    auto known =
        std::find_if(self.sums.begin(), self.sums.end(), [&](const Sums& one) { return one.d == call.d; });
    if (known == self.sums.end()) {
        demand_fence(call.d, count * 4, "sums", call.place);
        self.sums.push_back({call.d, static_cast<int>(count), 0, {}});
        known = self.sums.end() - 1;
        std::copy(call.d, call.d + count, known->value.begin());
        fill_poison(call.d, count * 4, poison_async);
    } else if (known->count != static_cast<int>(count)) {
        wrong(Kind::product_in_flight, "sums of a product of another shape that is under way", call.place);
    }
    ++known->products;
    auto mark = [&](const void* at, size_t words) {
        if (uint32_t* marks = marks_of(at); marks != nullptr && active_)
            for (size_t i = 0; i < words; ++i) marks[i] |= in_flight;
    };
    mark(call.d, count);
    if (call.registers != nullptr) mark(call.registers, 4);
}

void Warpgroups::product(const ProductCall& call) {
    Machine& m = machine();
    auto self = static_cast<size_t>(m.current);
    size_t number = self / lanes;
    Group& group = groups_[number];
    if ((number + 1) * lanes > threads_.size())
        wrong(Kind::product_mismatch, "a product by less than four warps", call.place);
    if (call.registers != nullptr) {
        bool flies = false;
        for (const Issued& one : threads_[self].issued) flies |= one.a == call.registers;
        if (!flies) demand_fence(call.registers, 16, "registers of a", call.place);
    }
    take_sums(call);
    for (const ProductCall* other : group.calls) {
        if (other == nullptr) continue;
        std::string text;
        if (!(other->place == call.place))
            text = "the warpgroup is at different products: " + other->place.text();
        else if (other->b != call.b)
            text =
                "descriptors of b are not equal in the warpgroup: " + hex(call.b) + " and " + hex(other->b);
        else if (call.registers == nullptr && other->a != call.a)
            text =
                "descriptors of a are not equal in the warpgroup: " + hex(call.a) + " and " + hex(other->a);
        else if (other->add != call.add)
            text = "some threads of the warpgroup add to the sums and others do not";
        if (!text.empty()) wrong(Kind::product_mismatch, text, call.place, other->place);
        break;
    }
    group.calls[self % lanes] = &call;
    Thread& thread = m.threads[self];
    thread.place = call.place;
    thread.wait = Wait::group;
    thread.waits_for = "wait at a product for others of their warpgroup";
    m.running = false;
    if (++group.arrived < static_cast<int>(lanes)) {
        m.wait_here();
    } else {
        issue(group, number);
        for (size_t t = number * lanes; t < (number + 1) * lanes; ++t) m.wake(t);
        m.pass_on();
    }
    m.engines_may_move();
}

void Warpgroups::issue(Group& group, size_t number) {
    Machine& m = machine();
    const ProductCall& call = *group.calls[0];
    Product fresh;
    fresh.call = call;
    fresh.group = number;
    fresh.work = std::make_unique<Work>();
    Work& work = *fresh.work;
    if (call.registers == nullptr) work.a_chunks = chunks_of(call.a, 64, false, call.place);
    work.b_chunks = chunks_of(call.b, call.columns, call.strided, call.place);
    work.floor.assign(m.clocks.columns(), ~0u);
    size_t index = products_.size();
    for (size_t lane = 0; lane < lanes; ++lane) {
        const ProductCall& of = *group.calls[lane];
        work.d[lane] = of.d;
        if (of.registers != nullptr) std::copy(of.registers, of.registers + 4, work.a[lane].begin());
        size_t t = number * lanes + lane;
        const uint32_t* row = m.clocks.row(static_cast<int>(t));
        for (size_t i = 0; i < work.floor.size(); ++i) work.floor[i] = std::min(work.floor[i], row[i]);
        threads_[t].issued.push_back({index, threads_[t].groups, of.d, of.registers});
    }
    if (readers_.empty()) readers_.assign(m.shape.shared_bytes / 4 * most_groups, 0);
    for (const auto* chunks : {&work.a_chunks, &work.b_chunks})
        for (uintptr_t chunk : *chunks)
            for (size_t word = (chunk - m.arena) / 4; word < (chunk - m.arena) / 4 + 4; ++word)
                readers_[word * most_groups + number] = static_cast<uint32_t>(index + 1);
    group.calls.fill(nullptr);
    group.arrived = 0;
    group.to_run.push_back(index);
    products_.push_back(std::move(fresh));
    Landing landing = options().landing;
    if (landing == Landing::earliest || (landing == Landing::random && m.random() % 3 == 0)) run(index);
}

void Warpgroups::run_one() {
    for (Group& group : groups_)
        if (!group.to_run.empty()) return run(group.to_run.front());
}

void Warpgroups::run(size_t product) {  // and those before it
    std::vector<size_t>& due = groups_[products_[product].group].to_run;
    while (!products_[product].ran) {
        compute(products_[due.front()]);
        due.erase(due.begin());
    }
}

// Thread 32 w + 4 g + t of the group has rows 16 w + g and 8 more: of the sums columns 8 n + 2 t and the next, of a
// columns 2 t, 2 t + 1 and those plus 8.
void Warpgroups::compute(Product& product) {
    Machine& m = machine();
    Work& work = *product.work;
    const ProductCall& call = product.call;
    auto columns = static_cast<size_t>(call.columns);
    static float a[64 * 16], b[16 * 256], sums[64 * 256];
    for (const auto* chunks : {&work.a_chunks, &work.b_chunks})
        for (uintptr_t chunk : *chunks)
            if (m.watching)
                m.shared_shadow.async_read(chunk, 16, work.floor.data(), "a product reads", call.place);
    auto element = [](uintptr_t chunk, size_t i) {
        return from_bf16(reinterpret_cast<const uint16_t*>(chunk)[i]);
    };
    for (size_t i = 0; i < work.a_chunks.size() * 8; ++i) a[i] = element(work.a_chunks[i / 8], i % 8);
    for (size_t i = 0; i < work.b_chunks.size() * 8; ++i) {
        float value = element(work.b_chunks[i / 8], i % 8);
        if (call.strided)
            b[i] = value;
        else
            b[i % 16 * columns + i / 16] = value;
    }
    std::array<Sums*, lanes> of{};
    for (size_t lane = 0; lane < lanes; ++lane) {
        std::vector<Sums>& all = threads_[product.group * lanes + lane].sums;
        of[lane] =
            &*std::find_if(all.begin(), all.end(), [&](const Sums& one) { return one.d == work.d[lane]; });
        size_t row = lane / 32 * 16 + lane % 32 / 4, t = lane % 4;
        for (size_t i = 0; i < columns / 2; ++i)
            sums[(row + i % 4 / 2 * 8) * columns + i / 4 * 8 + 2 * t + i % 2] =
                call.add ? of[lane]->value[i] : 0.0f;
        for (size_t i = 0; i < 8 && call.registers != nullptr; ++i) {
            auto half = static_cast<uint16_t>(work.a[lane][i / 2] >> (16 * (i % 2)));
            a[(row + i / 2 % 2 * 8) * 16 + i / 4 * 8 + 2 * t + i % 2] = from_bf16(half);
        }
    }
    add_product(sums, a, b, call.columns);
    for (size_t lane = 0; lane < lanes; ++lane) {
        size_t row = lane / 32 * 16 + lane % 32 / 4, t = lane % 4;
        for (size_t i = 0; i < columns / 2; ++i)
            of[lane]->value[i] = sums[(row + i % 4 / 2 * 8) * columns + i / 4 * 8 + 2 * t + i % 2];
    }
    product.ran = true;
}

void Warpgroups::commit() {
    ++threads_[static_cast<size_t>(machine().current)].groups;
    machine().engines_may_move();
}

void Warpgroups::wait(int pending, const Place& place) {
    Machine& m = machine();
    ThreadState& self = threads_[static_cast<size_t>(m.current)];
    bool any = false;
    while (!self.issued.empty() && self.issued.front().group < self.groups - pending) {
        Issued first = self.issued.front();
        run(first.product);
        self.issued.erase(self.issued.begin());
        retire(first, place);
        any = true;
    }
    if (any) m.clocks.tick(m.current);
}

void Warpgroups::retire(const Issued& issued, const Place& place) {
    Machine& m = machine();
    ThreadState& self = threads_[static_cast<size_t>(m.current)];
    Product& product = products_[issued.product];
    product.done[static_cast<size_t>(m.current) % lanes] = m.clocks.own(m.current);
    if (product.epoch == 0) product.epoch = m.epoch;
    if (--product.left == 0) product.work.reset();
    auto sums =
        std::find_if(self.sums.begin(), self.sums.end(), [&](const Sums& one) { return one.d == issued.d; });
    if (issued.a != nullptr) release(issued.a, 16, self);
    if (--sums->products > 0) return;
    auto count = static_cast<size_t>(sums->count);
    for (size_t i = 0; i < count; ++i) {
        uint32_t word;
        std::memcpy(&word, &issued.d[i], 4);
        if (word == poison_async) continue;
        Finding finding{Kind::product_in_flight,
                        m.name_thread(m.block, m.current) + ": sums of the product of " +
                            product.call.place.text() + " were written before its wait at " + place.text(),
                        m.block, m.current};
        finding.place = product.call.place.text();
        m.found(std::move(finding));
        break;
    }
    std::copy(sums->value.begin(), sums->value.begin() + sums->count, issued.d);
    release(issued.d, count * 4, self);
    self.sums.erase(sums);
}

// Registers of a product that is over, unless another one has them.
void Warpgroups::release(const void* at, size_t bytes, const ThreadState& self) {
    for (const Issued& other : self.issued)
        if (other.a == at) return;
    if (uint32_t* marks = marks_of(at); marks != nullptr)
        for (size_t i = 0; i < bytes / 4; ++i) marks[i] &= ~in_flight;
}

void Warpgroups::check_operands(uintptr_t address, size_t bytes, uintptr_t place) {
    if (readers_.empty()) return;
    Machine& m = machine();
    const uint32_t* row = m.clocks.row(m.current);
    uint32_t known = 0;  // a product that is over for this thread
    for (size_t word = (address - m.arena) / 4; word < (address - m.arena + bytes + 3) / 4; ++word)
        for (size_t number = 0; number < groups_.size(); ++number) {
            uint32_t& reader = readers_[word * most_groups + number];
            if (reader == 0) continue;
            const Product& product = products_[reader - 1];
            bool over = reader == known || (product.epoch != 0 && product.epoch < m.epoch);
            for (size_t lane = 0; lane < lanes && !over; ++lane)
                over = product.done[lane] != 0 && row[number * lanes + lane] >= product.done[lane];
            if (over) {
                known = reader;
                reader = 0;
                continue;
            }
            Finding finding{Kind::product_in_flight, "", m.block, m.current};
            finding.place = Place(place).text();
            finding.other_place = product.call.place.text();
            finding.message = m.name_address(m.arena + word * 4) + ": " + m.name_thread(m.block, m.current) +
                              " writes at " + finding.place +
                              ", and nothing orders that after a products_wait() for the product of " +
                              finding.other_place + ", which reads there";
            m.found(std::move(finding));
            return;
        }
}

void Warpgroups::thread_ends() {
    Machine& m = machine();
    const ThreadState& self = threads_[static_cast<size_t>(m.current)];
    if (self.issued.empty()) return;
    const Place& place = products_[self.issued.front().product].call.place;
    Finding finding{Kind::async_unwaited,
                    m.name_thread(m.block, m.current) +
                        " returned without products_wait() for the product of " + place.text(),
                    m.block, m.current};
    finding.place = place.text();
    m.found(std::move(finding));
}

// --- registers

void Warpgroups::change_registers(int registers, bool more, const Place& place) {
    Machine& m = machine();
    auto self = static_cast<size_t>(m.current);
    size_t number = self / lanes;
    Group& group = groups_[number];
    const char* what = more ? "more_registers" : "fewer_registers";
    if ((number + 1) * lanes > threads_.size())
        wrong(Kind::register_pool, std::string(what) + " by less than four warps", place);
    if (registers % 8 != 0 || registers < 24 || registers > 240)
        wrong(Kind::register_pool,
              std::string(what) + " to " + std::to_string(registers) +
                  "; multiples of 8 from 24 to 240 are allowed",
              place);
    if (more ? registers < group.registers : registers > group.registers)
        wrong(Kind::register_pool,
              std::string(what) + " to " + std::to_string(registers) + " from " +
                  std::to_string(group.registers),
              place);
    if (group.at_change > 0 && !(group.change_place == place))
        wrong(Kind::register_pool, "the warpgroup is at different changes of its registers", place,
              group.change_place);
    group.change_place = place;
    m.threads[self].place = place;
    m.threads[self].wait = Wait::registers;
    m.threads[self].waits_for = "wait at a change of registers for others of their warpgroup";
    m.running = false;
    if (++group.at_change < static_cast<int>(lanes)) {
        m.wait_here();
        return;
    }
    group.at_change = 0;
    group.wanted = registers;
    group.waits_for_registers = true;
    for (size_t t = number * lanes; t < (number + 1) * lanes; ++t) {
        m.threads[t].waits_for = "wait for registers that are not free";
        m.sleep(t);
    }
    give_registers();
    m.pass_on();
}

void Warpgroups::give_registers() {
    for (bool again = true; again;) {
        again = false;
        for (size_t number = 0; number < groups_.size(); ++number) {
            Group& group = groups_[number];
            int more = (group.wanted - group.registers) * static_cast<int>(lanes);
            if (!group.waits_for_registers || more > free_registers_) continue;
            free_registers_ -= more;
            group.registers = group.wanted;
            group.waits_for_registers = false;
            for (size_t t = number * lanes; t < (number + 1) * lanes; ++t) machine().wake(t);
            again = true;
        }
    }
}

std::string Warpgroups::table() const {
    std::string text;
    for (size_t number = 0; number < groups_.size(); ++number) {
        const Group& group = groups_[number];
        if (!group.waits_for_registers) continue;
        text += "\n  warpgroup " + std::to_string(number) + " has " + std::to_string(group.registers) +
                " registers a thread and waits for " + std::to_string(group.wanted) + " at " +
                group.change_place.text() + "; " + std::to_string(free_registers_) + " are free";
    }
    return text;
}

}  // namespace longreach::simt
