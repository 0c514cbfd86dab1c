// One call of the gated delta rule on a device in bf16, its operands and results, for tests of kernels/delta_reference.h.
#pragma once

#include "cuda/device_matrix.h"
#include "kernels/delta_reference.h"
#include "kernels/test_ops.h"

namespace longreach::test::delta {

// A problem whose operands are numbers of bf16. Keys have length 1 after their scale.
inline Problem rounded(const Case& c, float key_scale = 1.0f) {
    Problem p(c);
    for (Floats* x : {&p.q, &p.k, &p.v, &p.dout})
        for (int64_t r = 0; r < x->rows(); ++r)
            for (int64_t i = 0; i < x->cols(); ++i)
                x->at(r, i) =
                    static_cast<float>(static_cast<bf16>(x->at(r, i) / (x == &p.k ? key_scale : 1.0f)));
    p.spec.key_scale = key_scale;
    p.input = bf16_input;
    return p;
}

// Holds NaN. In the harness nobody has written it, and a read before a write is reported.
struct Workspace : DeviceMemory<float> {
    int64_t count;
    explicit Workspace(int64_t bytes) : DeviceMemory<float>(bytes / 4 + 1), count(bytes / 4 + 1) {
        if (!in_harness())
            set(std::vector<float>(static_cast<size_t>(count), std::numeric_limits<float>::quiet_NaN()));
    }
    Tensor tensor() const { return {data(), DType::f32, {count}}; }
};

// One problem on the device. gap: elements between rows.
struct DeviceRun {
    Ops& ops;
    Problem& p;
    DeltaSpec spec;
    DeviceMatrix<bf16> q, k, v, o, dout, dq, dk, dv;
    DeviceMatrix<float> decay, beta, states, state, ddecay, dbeta;
    DeviceMemory<int32_t> starts;

    DeviceRun(Ops& operations, Problem& problem, int64_t gap)
        : ops(operations),
          p(problem),
          spec(p.spec),
          q(p.rows, p.q.cols(), gap),
          k(p.rows, p.k.cols(), gap),
          v(p.rows, p.v.cols(), gap),
          o(p.rows, p.o.cols(), gap),
          dout(p.rows, p.dout.cols(), gap),
          dq(p.rows, p.dq.cols(), gap),
          dk(p.rows, p.dk.cols(), gap),
          dv(p.rows, p.dv.cols(), gap),
          decay(p.rows, p.decay.cols(), 3),
          beta(p.rows, p.beta.cols(), 1),
          states(p.states.rows(), p.states.cols(), 0),
          state(p.state.rows(), p.state.cols(), 0),
          ddecay(p.rows, p.ddecay.cols(), 1),
          dbeta(p.rows, p.dbeta.cols(), 2),
          starts(p.rows) {
        q.set(p.q);
        k.set(p.k);
        v.set(p.v);
        dout.set(p.dout);
        decay.set(p.decay);
        beta.set(p.beta);
        if (!spec.doc_start) return;
        starts.set(std::vector<int32_t>(p.starts.data(), p.starts.data() + p.rows));
        spec.doc_start = Tensor(starts.data(), DType::i32, {p.c.batch, p.c.length});
    }
    void forward() {
        for (DeviceMatrix<float>* x : {&states, &state}) x->erase();
        o.erase();
        read(0, spec.length, states.tensor());
    }
    // Positions of a single sequence: the first, or what follows those before.
    void forward(int64_t begin, int64_t count) { read(begin, count, Tensor()); }
    void backward() {
        const Workspace space(ops.delta_workspace(spec, true));
        for (DeviceMatrix<bf16>* x : {&dq, &dk, &dv}) x->erase();
        for (DeviceMatrix<float>* x : {&ddecay, &dbeta}) x->erase();
        ops.delta_rule_backward(dq.tensor(), dk.tensor(), dv.tensor(), ddecay.tensor(), dbeta.tensor(),
                                space.tensor(), dout.tensor(), states.tensor(), q.tensor(), k.tensor(),
                                v.tensor(), decay.tensor(), beta.tensor(), spec);
        p.dq = dq.get();
        p.dk = dk.get();
        p.dv = dv.get();
        p.ddecay = ddecay.get();
        p.dbeta = dbeta.get();
    }
    // Both, on memory that holds nothing; the results go into the problem.
    void execute() {
        forward();
        backward();
    }
    Floats results() { return joined({&p.o, &p.states, &p.state, &p.dq, &p.dk, &p.dv, &p.ddecay, &p.dbeta}); }

  private:
    void read(int64_t begin, int64_t count, const Tensor& of_chunks) {
        DeltaSpec part = spec;
        part.length = count;
        part.continues = begin > 0;
        const Workspace space(ops.delta_workspace(part, false));
        const auto rows = [&](const auto& x) { return x.tensor().row_range(begin, spec.batch * count); };
        ops.delta_rule(rows(o), of_chunks, state.tensor(), space.tensor(), rows(q), rows(k), rows(v),
                       rows(decay), rows(beta), part);
        p.o = o.get();
        p.states = states.get();
        p.state = state.get();
    }
};

}  // namespace longreach::test::delta
