// Which tokens a training step sees: a pure function of (seed, tokens consumed so far).
//
// The stream is cut into blocks of fixed length (the largest context of the run). Each epoch visits all
// blocks once, in an order of its own drawn from the seed (or in file order), and the run reads the blocks
// one after the other as one endless sequence of tokens. A step takes the next tokens of that sequence and
// cuts them to its context. Neither the number of ranks, the micro-batch nor an interruption of the run
// changes what is read.
//
// A sequence that crosses from one block to another that does not follow it in the stream consists of several
// pieces; each piece is a fragment of a document of its own. With contexts that divide the block, and stages
// that consume whole blocks, there is always one piece.
#pragma once

#include <cstdint>
#include <vector>

namespace longreach::data {

enum class ShuffleKind { random, none };

// Stream positions [begin, begin + length); the target of the last is the token at
// begin + length, which exists.
struct Piece {
    uint64_t begin = 0;
    int64_t length = 0;
    bool operator==(const Piece&) const = default;
};

class BatchPlan {
  public:
    // An Error if the stream has no complete block: block + 1 tokens, the last being only a target.
    BatchPlan(uint64_t stream_tokens, int64_t block, uint64_t seed, ShuffleKind shuffle);

    // The pieces, in reading order, of the sequence of `length` tokens that begins after `consumed` tokens of
    // the run. Replaces the contents of `pieces`; allocates only if that has too little capacity.
    void locate(uint64_t consumed, int64_t length, std::vector<Piece>& pieces) const;

    uint64_t blocks() const { return blocks_; }
    uint64_t epoch_tokens() const { return blocks_ * static_cast<uint64_t>(block_); }
    double epochs(uint64_t consumed) const;  // how many times the data has been read

  private:
    uint64_t stream_position(uint64_t consumed) const;
    int64_t block_;
    uint64_t blocks_, seed_;
    ShuffleKind shuffle_;
};

}  // namespace longreach::data
