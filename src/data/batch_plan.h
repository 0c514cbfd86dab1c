// Which tokens a training step sees: a pure function of (seed, tokens consumed so far).
//
// Each source of the stream is cut into blocks of fixed length (the largest context of the run): its tokens one
// after the other, or each document that is as long as a block, from its start. Each epoch of
// a source visits all its blocks once, in an order of its own drawn from the seed (or in file order). The run
// reads blocks one after the other as one endless sequence of tokens. A step takes the next tokens of that
// sequence and cuts them to its context. Neither the number of ranks, the micro-batch nor an interruption of
// the run changes what is read. A phase that begins inside a block begins with the rest of another block, so that
// contexts which divide the block stay aligned to it.
//
// Which source the next block comes from follows the weights of the current phase. 4096 slots in a row make a
// group, in which each source has a fixed number of slots. Slot j of a group has rank r = reverse(j) xor m:
// the 12 bits of j in reverse order, and a mask m drawn for the group. A source owns a range of ranks as long
// as its share. So 64 slots that begin at a multiple of 64 differ from its share of them by less than one slot,
// and how many of its blocks were read before slot j is computed without a table.
//
// A sequence that crosses from one block to another that does not follow it in the stream consists of several
// pieces; each piece is a fragment of a document of its own. With contexts that divide the block, and stages
// that consume whole blocks, there is always one piece.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/token_stream.h"

namespace longreach::data {

enum class ShuffleKind { random, none };
enum class BlockKind { stream, documents };

// Where the blocks of a source are.
struct BlockTable {
    // Blocks `first` and following begin at stream position `begin`, one after the other.
    struct Run {
        uint64_t first = 0, begin = 0;
    };
    std::vector<Run> runs;
    uint64_t blocks = 0;
    std::string shortage = {};  // why there is none, if there is none
};
BlockTable cut_stream(const Source& source, int64_t block);
// `begins`: where the documents of the stream begin. What a document has after its last whole block is left out.
BlockTable cut_documents(const Source& source, const std::vector<uint64_t>& begins, int64_t block);
// The tables of all sources of a stream.
std::vector<BlockTable> cut_sources(const TokenStream& stream, BlockKind kind, int64_t block);

// Slots of a group; the least share that a source with any weight can have is one of them.
inline constexpr int mixture_slots = 4096;

// From `first_token` of the run on, sources are read in proportion to their weights.
struct Phase {
    uint64_t first_token = 0;
    std::vector<double> weights;  // one for each source
};

// Stream positions [begin, begin + length); the target of the last is the token at
// begin + length, which exists.
struct Piece {
    uint64_t begin = 0;
    int64_t length = 0;
    bool operator==(const Piece&) const = default;
};

class BatchPlan {
  public:
    // `phases` begin at token 0 and ascend. An Error if a source that is read has no complete block: block + 1
    // tokens, the last being only a target.
    BatchPlan(std::vector<BlockTable> sources, const std::vector<Phase>& phases, int64_t block, uint64_t seed,
              ShuffleKind shuffle);
    // One source.
    BatchPlan(uint64_t stream_tokens, int64_t block, uint64_t seed, ShuffleKind shuffle)
        : BatchPlan({cut_stream({0, stream_tokens}, block)}, {Phase{0, {1.0}}}, block, seed, shuffle) {}

    // The pieces, in reading order, of the sequence of `length` tokens that begins after `consumed` tokens of
    // the run. Replaces the contents of `pieces`; allocates only if that has too little capacity.
    void locate(uint64_t consumed, int64_t length, std::vector<Piece>& pieces) const;

    // How many times the source has been read after `consumed` tokens of the run.
    double epochs(uint64_t consumed, size_t source = 0) const;
    uint64_t blocks(size_t source = 0) const { return sources_[source].blocks; }
    uint64_t epoch_tokens(size_t source = 0) const { return blocks(source) * static_cast<uint64_t>(block_); }

  private:
    struct Segment {  // a phase
        uint64_t first_token;
        std::vector<uint64_t> given;  // blocks that each source gave in the phases before
        std::vector<uint64_t> share;  // slots of a group before those of each source, then mixture_slots
    };
    const Segment& segment_of(uint64_t consumed) const;
    size_t source_of(const Segment& segment, uint64_t slot) const;
    // Blocks that the source has given before this slot of the phase, those of earlier phases included.
    uint64_t given_before(const Segment& segment, size_t source, uint64_t slot) const;
    uint64_t mask_of(uint64_t group) const;
    uint64_t block_begin(size_t source, uint64_t given) const;  // stream position

    int64_t block_;
    uint64_t seed_;
    ShuffleKind shuffle_;
    std::vector<BlockTable> sources_;
    std::vector<Segment> segments_;
};

}  // namespace longreach::data
