// The CPU implementation of Ops. Include between isa_begin.h and isa_end.h: one class per instruction set, so
// that a kernel calls another of its own set and the vtable is the only dispatch. One source per op family:
// gemm, bias, attention, scores, norm, heads, activation, embedding, loss, optimizer, reduce, memory.

struct MatrixProduct;  // gemm.h
enum class Products;

// What attention backward writes and reads.
struct AttentionTensors {
    Tensor dq, dk, dv;
    const Tensor &dout, &o, &lse, &q, &k, &v;
};

class CpuOps final : public Ops, public CpuDevice {
  public:
    CpuOps(int threads, Precision precision, Tiles tiles);
    ~CpuOps() override;

    std::string describe() const override;
    DeviceTraits do_traits() const override;
    Pool& pool() override { return pool_; }

    void* allocate(int64_t bytes) override;
    void release(void* memory, int64_t bytes) override;
    void do_upload(Tensor to, const void* host) override;
    void do_download(void* host, const Tensor& from) override;
    int64_t scratch_bytes() const override;
    void do_zero(Tensor to) override;
    void do_copy(Tensor to, const Tensor& from) override;
    void do_add(Tensor to, const Tensor& from) override;
    void synchronize() override {}

    void do_linear(Tensor y, const Tensor& x, const Tensor& w, Write write) override;
    void do_linear_backward_input(Tensor dx, const Tensor& dy, const Tensor& w, Write write) override;
    void do_linear_backward_weight(Tensor dw, const Tensor& dy, const Tensor& x, Write write) override;
    int64_t held_floats(const Tensor& w) const override;
    void fill_held(Tensor held, const Tensor& w) override;
    void hold(const Tensor& w, const Tensor& held) override;
    void do_add_bias(Tensor y, const Tensor& bias) override;
    void do_add_bias_backward(Tensor dbias, const Tensor& dy) override;
    void do_linear_relu2(Tensor h, const Tensor& x, const Tensor& w) override;
    void do_linear_relu2_backward(Tensor da, const Tensor& dy, const Tensor& w, const Tensor& h) override;

    void do_embedding(Tensor x, const Tensor& table, const Tensor& tokens) override;
    void do_embedding_backward(Tensor dtable, const Tensor& dx, const Tensor& tokens) override;

    void do_norm(Tensor y, Tensor normalised, Tensor inverse, const Tensor& x, const Tensor& gain,
                 const Tensor& bias, const NormSpec& spec) override;
    void do_norm_backward(Tensor dx, Tensor dgain, Tensor dbias, const Tensor& dy, const Tensor& normalised,
                          const Tensor& inverse, const Tensor& gain, const NormSpec& spec,
                          Write write) override;

    void do_prepare_heads(Tensor x, Tensor normalised, Tensor inverse, const HeadSpec& spec) override;
    void do_prepare_heads_backward(Tensor dx, Tensor dgain, Tensor dbias, Tensor dlog_eps, const Tensor& x,
                                   const Tensor& normalised, const Tensor& inverse,
                                   const HeadSpec& spec) override;
    void do_short_conv(Tensor y, const Tensor& x, const Tensor& w, const Tensor& doc_start,
                       int64_t length) override;
    void do_short_conv_backward(Tensor dx, Tensor dw, const Tensor& dy, const Tensor& x, const Tensor& w,
                                const Tensor& doc_start, int64_t length) override;
    void do_row_starts(Tensor row_start, const Tensor& doc_start, int64_t length, int64_t window,
                       int64_t chunk) override;
    void do_evaluate_law(Tensor table, const LawSpec& spec) override;
    void do_law_rows(Tensor factor, const Tensor& table, const LawEntries& entries) override;
    void do_law_gradient(Tensor dparameter, const Tensor& derivative, const Tensor& gradient,
                         const LawEntries& entries, const Tensor& elements) override;
    void do_running_sums(Tensor sums, Tensor total, const Tensor& values, const Tensor& keys, int64_t length,
                         int64_t first) override;
    void do_running_sums_backward(Tensor dvalues, const Tensor& dsums, int64_t length) override;
    void do_term_gradient(Tensor dx, const Tensor& derivative, const Tensor& gradient, Write write) override;
    void do_token_angles(Tensor cosine, Tensor sine, const Tensor& sums, const Tensor& theta, int64_t length,
                         int64_t first) override;
    void do_token_angles_backward(Tensor dsums, const Tensor& dx, const Tensor& x, const Tensor& theta,
                                  int64_t head_dim, Write write) override;
    void do_attention(Tensor o, Tensor lse, Tensor row_maxima, const Tensor& q, const Tensor& k,
                      const Tensor& v, const AttentionSpec& spec) override;
    void do_attention_statistics(Tensor statistics, const Tensor& lse, const Tensor& q, const Tensor& k,
                                 const Tensor& watched, const AttentionSpec& spec) override;
    void do_attention_decode(Tensor o, const Tensor& q, const Tensor& k, const Tensor& v,
                             const AttentionSpec& spec, int64_t first, int64_t position) override;
    void do_attention_backward(Tensor dq, Tensor dk, Tensor dv, const AttentionGradients& gradients,
                               Tensor workspace, const Tensor& dout, const Tensor& o, const Tensor& lse,
                               const Tensor& q, const Tensor& k, const Tensor& v,
                               const AttentionSpec& spec) override;
    int64_t do_attention_workspace(const AttentionSpec& spec,
                                   const AttentionGradients& gradients) const override;
    void do_index_loss(Tensor losses, Tensor index_lse, IndexScores d, const Tensor& lse, const Tensor& q,
                       const Tensor& k, float gradient_scale, const AttentionSpec& spec) override;
    void do_gate(Tensor y, const Tensor& u, const Tensor& o, const GateSpec& spec) override;
    void do_gate_backward(Tensor dout, Tensor du, const Tensor& dy, const Tensor& u, const Tensor& o,
                          const GateSpec& spec) override;
    void do_exclude_own_value(Tensor y, const Tensor& o, const Tensor& v, int64_t head_dim) override;
    void do_exclude_own_value_backward(Tensor dout, Tensor dv, const Tensor& dy, const Tensor& o,
                                       const Tensor& v, int64_t head_dim) override;
    void do_delta_gates(Tensor decay, Tensor beta, const Tensor& u, const Tensor& ub,
                        const DeltaGateSpec& spec) override;
    void do_delta_gates_backward(Tensor du, Tensor dub, Tensor da_log, Tensor dbias, const Tensor& ddecay,
                                 const Tensor& dbeta, const Tensor& u, const Tensor& ub,
                                 const DeltaGateSpec& spec) override;
    void do_delta_rule(Tensor o, Tensor states, Tensor state, Tensor workspace, const Tensor& q,
                       const Tensor& k, const Tensor& v, const Tensor& decay, const Tensor& beta,
                       const DeltaSpec& spec) override;
    void do_delta_rule_backward(Tensor dq, Tensor dk, Tensor dv, Tensor ddecay, Tensor dbeta,
                                Tensor workspace, const Tensor& dout, const Tensor& states, const Tensor& q,
                                const Tensor& k, const Tensor& v, const Tensor& decay, const Tensor& beta,
                                const DeltaSpec& spec) override;
    int64_t do_delta_workspace(const DeltaSpec& spec, bool backward) const override;
    void do_simplicial(Tensor o, Tensor lse, const Tensor& q, const SimplicialKeys& keys,
                       const SimplicialSpec& spec) override;
    void do_simplicial_backward(Tensor dq, SimplicialKeys d, const Tensor& dout, const Tensor& o,
                                const Tensor& lse, const Tensor& q, const SimplicialKeys& keys,
                                const SimplicialSpec& spec) override;

    void do_activation(Tensor h, const Tensor& a, Activation kind) override;
    void do_activation_backward(Tensor da, const Tensor& dh, const Tensor& a, Activation kind) override;
    void do_mix(Tensor out, const Coefficient& a, const Tensor& x, const Coefficient& b,
                const Tensor& y) override;
    void do_mix_backward(Tensor dx, Tensor dy, Tensor da, Tensor db, const Tensor& dout, const Coefficient& a,
                         const Tensor& x, const Coefficient& b, const Tensor& y) override;

    void do_smear(Tensor y, const Tensor& x, const Tensor& w, const Tensor& lambda, const Tensor& doc_start,
                  int64_t length) override;
    void do_smear_backward(Tensor dx, Tensor dw, Tensor dlambda, const Tensor& dy, const Tensor& x,
                           const Tensor& w, const Tensor& lambda, const Tensor& doc_start,
                           int64_t length) override;

    void do_cross_entropy(Tensor loss, Tensor logits, const Tensor& targets, const LossSpec& spec,
                          bool gradient) override;
    void do_top1(Tensor best, const Tensor& logits) override;

    void do_sum(Tensor out, const Tensor& x) override;
    void do_sum_squares(Tensor out, std::span<const Tensor> parts) override;
    void do_head_maxima(Tensor out, const Tensor& row_maxima) override;
    void do_qk_clip(Tensor wq, Tensor wk, const Tensor& maxima, int64_t head_dim, float limit) override;
    void do_adam(std::span<const AdamSlot> slots, const AdamSpec& spec) override;
    void do_muon(std::span<const MuonSlot> slots, Tensor workspace, const MuonSpec& spec) override;
    int64_t do_muon_workspace(std::span<const MuonSlot> slots) const override;

  private:
    // gemm.cpp: one matrix product on all threads, in f32 or with both sides rounded to bf16.
    void multiply(const MatrixProduct& product);
    template <class Unit>
    void multiply_units(const MatrixProduct& product);
    template <class Unit>
    void multiply_by_rows(const MatrixProduct& product);
    template <class Unit>
    void multiply_by_pieces(const MatrixProduct& product);
    // few_rows.cpp: false if the product is none for it.
    bool multiply_few_rows(const MatrixProduct& product);

    // attention.cpp, attention_backward.cpp (which serves entmax too), with inputs of products in f32 or rounded to bf16.
    template <class Unit>
    void softmax_attention(Tensor o, Tensor lse, Tensor row_maxima, const Tensor& q, const Tensor& k,
                           const Tensor& v, const AttentionSpec& spec);
    template <class Unit>
    void softmax_attention_backward(const AttentionTensors& of, const AttentionGradients& gradients,
                                    const Tensor& workspace, const AttentionSpec& spec);
    // attention_top.cpp: of a spec with top_k.
    void attention_to_top(Tensor o, Tensor lse, const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttentionSpec& spec);
    void decode_to_top(Tensor o, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionSpec& spec,
                       int64_t first, int64_t position);
    // stick_breaking.cpp, stick_breaking_backward.cpp: of that normaliser.
    template <class Unit>
    void break_sticks(Tensor o, Tensor lse, const Tensor& q, const Tensor& k, const Tensor& v,
                      const AttentionSpec& spec);
    template <class Unit>
    void break_sticks_backward(const AttentionTensors& of, const AttentionGradients& gradients,
                               const Tensor& workspace, const AttentionSpec& spec);
    int64_t stick_workspace(const AttentionSpec& spec, const AttentionGradients& gradients) const;
    // channel_decay.cpp, channel_decay_backward.cpp: of a spec with sums by channel.
    void decayed_attention(Tensor o, Tensor lse, const Tensor& q, const Tensor& k, const Tensor& v,
                           const AttentionSpec& spec);
    void decayed_attention_backward(const AttentionTensors& of, const AttentionGradients& gradients,
                                    const Tensor& workspace, const AttentionSpec& spec);
    int64_t decay_workspace(const AttentionSpec& spec) const;
    // entmax.cpp.
    template <class Unit>
    void entmax_attention(Tensor o, Tensor lse, const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttentionSpec& spec);
    // What softmax_attention_backward subtracts from the gradients of weights, delta [H, N] =, and the gradients of a sink and
    // of alpha, += where they are wanted; attention_backward.cpp, entmax_backward.cpp.
    // Pieces of the workspace: memory for the threads, alphas [H, N].
    void softmax_deltas(float* delta, const AttentionTensors& of, const AttentionGradients& gradients,
                        const AttentionSpec& spec);
    template <class Unit>
    void entmax_deltas(float* delta, float* memory, float* alphas, const AttentionTensors& of,
                       const AttentionGradients& gradients, const AttentionSpec& spec);

    Pool pool_;
    int threads_;  // those that may ever run: what memory per thread is sized by
    Precision precision_;
    // Per-thread packing space, allocated once: no op allocates.
    float* scratch_ = nullptr;
    int64_t scratch_per_thread_ = 0;  // floats
    float* packed_ = nullptr;         // packed right-hand sides of matrix products, shared by the threads
    int64_t packed_floats_ = 0;
    // Partial sums of a reduction, one per fixed block: their number never depends on the threads.
    static constexpr int64_t partial_doubles = 1 << 18;  // 2 MiB
    double* partials_ = nullptr;
    float* scratch_of(int thread) const { return scratch_ + thread * scratch_per_thread_; }

    // What the tasks of a product know of each other. Products of right sides and their pieces are numbered: a panel is
    // packed where its number is that of the piece at work.
    static constexpr int64_t most_panels = 1 << 12;
    std::vector<std::atomic<uint64_t>> packed_for_ = std::vector<std::atomic<uint64_t>>(most_panels);
    uint64_t right_side_ = 0;
    Products products_;  // of gemm.cpp
    // Matrices that are held, few_rows.cpp.
    struct Held {
        const float* w;
        int64_t rows, cols;
        const float* panels;
    };
    std::vector<Held> held_;
    Tiles tiles_;
};
