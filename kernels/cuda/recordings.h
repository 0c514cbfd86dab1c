// Passes that a stream repeats, recorded as graphs of the runtime: one launch for hundreds.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/cuda/progress.h"

namespace longreach::cuda {

// A recording is cut where the host has something to do (Ops::host_step): graph, step, graph, ...
class Recordings {
  public:
    Recordings(cudaStream_t stream, Progress& progress) : stream_(stream), progress_(progress) {}
    Recordings(const Recordings&) = delete;
    Recordings& operator=(const Recordings&) = delete;
    ~Recordings() { forget(); }

    // The first time for a key the work runs as it is, so that everything lazy has happened before it is captured.
    void replay(const std::string& key, const std::function<void()>& work);
    void host_step(const std::function<void()>& step);
    bool capturing() const { return capturing_; }
    void forget();  // because memory that they name goes away

  private:
    struct Piece {
        cudaGraphExec_t graph = nullptr;
        std::function<void()> then{};  // by the host, once the graph is in the stream
    };
    struct Recording {
        bool seen = false;
        std::vector<Piece> pieces;
    };
    static constexpr size_t most = 64;

    void record(Recording& recording, const std::function<void()>& work);
    void begin_piece();
    void end_piece();  // and launches it
    void launch(const Piece& piece);
    static void forget(Recording& recording);

    cudaStream_t stream_;
    Progress& progress_;
    std::map<std::string, Recording> recordings_;
    bool capturing_ = false;
    Recording* recorded_ = nullptr;  // while it is captured
};

}  // namespace longreach::cuda
