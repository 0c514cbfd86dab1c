// What acts on the outputs of heads before their projection. A matrix has a row for each head or for each channel; that of a
// head given once per channel is the parts of its gradient once more.
#pragma once

#include "model/attention_config.h"
#include "reference/projections.h"

namespace longreach::reference {

// <row of w, the first channels of x>, of the row that channel c of `channels` belongs to.
template <class T>
T logit(const Row<T>& w, const Row<T>& x, size_t inputs, size_t c, size_t channels) {
    const size_t row = c / (channels / (w.size() / inputs));
    T u = 0;
    for (size_t i = 0; i < inputs; ++i) u += w[row * inputs + i] * x[i];
    return u;
}

// Of each two heads of d channels the first less a share of the second.
template <class T>
Row<T> differences(const Row<T>& heads, const Row<T>& x, const Row<T>& w, size_t d) {
    Row<T> out(heads.size() / 2, T(0));
    for (size_t c = 0; c < out.size(); ++c) {
        const size_t first = c / d * 2 * d + c % d;
        out[c] = heads[first] - sigmoid(logit(w, x, x.size(), c, out.size())) * heads[first + d];
    }
    return out;
}

// The same of every row. Returns what they multiply the square of a relative error with: one and the mean over the rows of the
// squared size of the heads over that of the differences, where there is one.
template <class T>
double subtract_heads(Rows<T>& rows, const Rows<T>& x, const Row<T>& w, size_t d) {
    double condition = 1;
    for (size_t p = 0; p < rows.size(); ++p) {
        double taken = 0, left = 0;
        for (const T& h : rows[p]) taken += value_of(h) * value_of(h);
        rows[p] = differences(rows[p], x[p], w, d);
        for (const T& o : rows[p]) left += value_of(o) * value_of(o);
        if (left > 0) condition += taken / left / double(rows.size());
    }
    return condition;
}

template <class T>
void gate(Row<T>& row, const Row<T>& x, const model::GateConfig& g, const Row<T>& w) {
    const size_t inputs = g.kind == model::GateKind::sparse ? size_t(model::sparse_gate_channels) : x.size();
    for (size_t c = 0; c < row.size(); ++c)
        row[c] = T(g.doubled ? 2.0 : 1.0) * sigmoid(logit(w, x, inputs, c, row.size())) * row[c];
}

}  // namespace longreach::reference
