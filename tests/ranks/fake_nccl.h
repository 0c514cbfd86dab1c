// NCCL between threads of one process, on the streams of fake_cuda: calls only say what is to be done,
// streams do it later, and a call that would be an error, or a hang, with the real one is reported, or hangs,
// here as well. Reports go to fake_cuda::report.
#pragma once

#include "ranks/fake_cuda.h"
#include "ranks/nccl_api.h"
#include "ranks/nccl_comm.h"

namespace longreach::test::fake_nccl {

const ranks::NcclApi& api();
ranks::NcclId new_id();
int living();  // communicators that were neither destroyed nor aborted

// What happens on `rank` at the collective-th one (from 1) of every communicator made from now on.
enum class Fault {
    kill,         // the rank is gone: it does nothing any more, and the others learn of an error
    hang,         // it stands still, and nobody learns why
    slow,         // it is late by 50 ms
    async_error,  // it stands still, and this rank's communicator has an error
};
void plan(int rank, int collective, Fault fault);
void make_calls_slow(int milliseconds);  // every ncclGroupEnd
void forget_plans();

}  // namespace longreach::test::fake_nccl
