// NcclComm with the library and a GPU: one rank that sends to itself. How ranks wait for each other, and what is noticed
// when one fails, is tested without either (tests/ranks/nccl_comm_test.cpp).
#include <numeric>

#include "kernels/cuda_device.h"
#include "kernels/support.h"
#include "ranks/nccl_comm.h"

using namespace longreach;
using namespace longreach::test;

namespace {

struct OneRank {
    std::unique_ptr<Ops> ops = make_cuda_ops({});
    std::unique_ptr<ranks::Comm> comm =
        ranks::make_nccl_comm(0, 1, nullptr, ops->native_queue(), ranks::new_nccl_id(),
                              [](const std::string& reason) { fail(ExitCode::peer, "{}", reason); });
};

// Device memory of a type, 4 bytes an element at most.
struct Piece {
    Ops& ops;
    Tensor tensor;
    Piece(Ops& on, DType type, int64_t count)
        : ops(on), tensor(on.allocate(count * size_of(type)), type, {count}) {}
    Piece(const Piece&) = delete;
    Piece& operator=(const Piece&) = delete;
    ~Piece() { ops.release(tensor.data(), tensor.bytes()); }
    void set(int seed) {
        std::vector<unsigned char> bytes(static_cast<size_t>(tensor.bytes()));
        std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(seed));
        ops.upload(tensor, bytes.data());
    }
    std::vector<unsigned char> get() const {
        std::vector<unsigned char> bytes(static_cast<size_t>(tensor.bytes()));
        ops.download(bytes.data(), tensor);
        return bytes;
    }
};

}  // namespace

TEST_CASE("NCCL can be used") {
    MESSAGE("NCCL: ", ranks::nccl_unusable().empty() ? "usable" : ranks::nccl_unusable());
    REQUIRE(ranks::nccl_unusable().empty());
    MESSAGE(OneRank().comm->describe());
}

TEST_CASE("pieces of every type and operation arrive whole, in the order of the queue") {
    OneRank rank;
    for (const ranks::CollectiveOp op : {ranks::CollectiveOp::all_to_all, ranks::CollectiveOp::all_gather,
                                         ranks::CollectiveOp::reduce_scatter, ranks::CollectiveOp::broadcast})
        for (const DType type : {DType::f32, DType::bf16, DType::i32})
            for (const int64_t count : {1, 1000, 3000000}) {
                CAPTURE(name_of(type));
                CAPTURE(count);
                Piece from(*rank.ops, type, count), to(*rank.ops, type, count);
                from.set(static_cast<int>(count % 7));
                const ranks::Transfer send{0, from.tensor}, receive{0, to.tensor};
                const auto ticket = rank.comm->exchange({op, type, count}, {&send, 1}, {&receive, 1});
                rank.comm->wait(ticket);
                CHECK(to.get() == from.get());
            }
}

TEST_CASE("a sum over one rank is the value") {
    OneRank rank;
    for (const int64_t count : {1, 1000, 3000000}) {
        Piece data(*rank.ops, DType::f32, count);
        std::vector<float> values(static_cast<size_t>(count));
        for (size_t i = 0; i < values.size(); ++i) values[i] = 0.5f * static_cast<float>(i % 1001) - 3;
        rank.ops->upload(data.tensor, values.data());
        rank.comm->wait(rank.comm->all_reduce(data.tensor));
        std::vector<float> sums(values.size());
        rank.ops->download(sums.data(), data.tensor);
        CHECK(sums == values);
    }
}
