#include "kernels/cuda/recordings.h"

#include <utility>

#include "kernels/cuda/runtime.h"

namespace longreach::cuda {

void Recordings::replay(const std::string& key, const std::function<void()>& work) {
    Recording& recording = recordings_[key];
    if (!recording.seen) {
        work();
        recordings_[key].seen = true;  // not `recording`: the work may have made all be forgotten
        return;
    }
    if (recording.pieces.empty()) {
        record(recording, work);
    } else {
        for (const Piece& piece : recording.pieces) {
            launch(piece);
            if (piece.then) piece.then();
        }
    }
    if (recordings_.size() > most) {
        progress_.wait("the end of recorded passes");
        forget();
    }
}

// A piece ends here, and is in the stream, so that the host finds there what comes before its step.
void Recordings::host_step(const std::function<void()>& step) {
    if (!capturing_) return step();
    end_piece();
    recorded_->pieces.back().then = step;
    step();
    begin_piece();
}

void Recordings::record(Recording& recording, const std::function<void()>& work) {
    recorded_ = &recording;
    begin_piece();
    try {
        work();
    } catch (...) {
        if (std::exchange(capturing_, false)) {
            cudaGraph_t graph = nullptr;
            cudaStreamEndCapture(stream_, &graph);
            if (graph) cudaGraphDestroy(graph);
            cudaGetLastError();
        }
        forget(recording);
        throw;
    }
    end_piece();
}

void Recordings::begin_piece() {
    require_success(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin of a capture");
    capturing_ = true;
}

void Recordings::end_piece() {
    capturing_ = false;
    cudaGraph_t graph = nullptr;
    require_success(cudaStreamEndCapture(stream_, &graph), "end of a capture");
    Piece piece;
    const cudaError_t error = cudaGraphInstantiate(&piece.graph, graph, 0);
    cudaGraphDestroy(graph);
    require_success(error, "cudaGraphInstantiate");
    recorded_->pieces.push_back(piece);
    launch(piece);
}

void Recordings::launch(const Piece& piece) {
    require_success(cudaGraphLaunch(piece.graph, stream_), "cudaGraphLaunch");
    progress_.queued("a recorded pass");
}

void Recordings::forget(Recording& recording) {
    for (const Piece& piece : recording.pieces) cudaGraphExecDestroy(piece.graph);
    recording.pieces.clear();
}
void Recordings::forget() {
    for (auto& [key, recording] : recordings_) forget(recording);
    recordings_.clear();
}

}  // namespace longreach::cuda
