// One query against all keys of its sequence, for many sequences.
//
// Memory is the limit, so it must never rest: the keys of all rows are one stream of items, each a chunk of
// keys of one KV head, and three stages work on three items in turns, a segment at a time. While the
// third adds the values of one item, it asks for the lines of a later one.
//
//     products of item n + 2      weights of item n + 1      sums of item n, lines of item n + 4
//
// Measured with one thread beside one stage after the other, a chunk at a time: 0.95 of the time for 8
// rows of 1,024 keys, 0.88 for 32 of 256.
#pragma once
#include "decode_products.h"

namespace kvmesh {

// The queries of one row and some KV heads against its keys [begin, end). Sums are float32 [kv_heads ·
// group, head_dim] in the order of load_pair, and not yet divided by the total of the weights, so that the
// parts of a long sequence can be joined: see attention.cpp.
template <typename T>
struct DecodeTask {
    BlockTable table;
    int64_t begin, end, head, kv_heads;
    const Number<T>* query;
    OnlineSoftmax* softmax;
    float* sums;
};

// A chunk of a task's keys for one KV head. Of the slots, the query sees [first, count).
template <typename T>
struct DecodeItem {
    const DecodeTask<T>* task = nullptr;
    int64_t head = 0;  // within the task
    int first = 0, count = 0;
    ChunkSlots<T> slots;
};

// Products become weights, [first, count) of them; the others weigh nothing. Returns the factor for the sums
// so far.
inline float weigh(const Scoring& scoring, float* scores, int first, int count, OnlineSoftmax& softmax) {
    for (int i = 0; i < kChunk; i += kLanes) store(scores + i, scoring.score(load(scores + i)));
    std::fill(scores, scores + first, -INFINITY);
    std::fill(scores + count, scores + kChunk, -INFINITY);
    Lanes highest = load(scores);
    for (int i = kLanes; i < kChunk; i += kLanes) highest = larger(highest, load(scores + i));
    const float factor = softmax.raise(largest(highest));
    Lanes total = {};
    for (int i = 0; i < kChunk; i += kLanes) {
        const Lanes weights = exp2(load(scores + i) - softmax.base);
        store(scores + i, weights);
        total += weights;
    }
    softmax.total += sum(total);
    return factor;
}

template <typename T>
class DecodeStream {
public:
    DecodeStream(const PagedLayer<T>& layer, const Scoring& scoring, int group, const DecodeTask<T>* tasks, size_t count)
        : layer_(layer), scoring_(scoring), group_(group), task_(tasks), last_task_(tasks + count),
          queries_(layer, group), keys_(layer.head_dim), values_(layer.head_dim) {
        begin_task();
    }

    void run() {
        for (int64_t n = 0; n < kAhead; n++) make(n);
        for (int64_t n = -2; n < made_; n++) {
            make(n + kAhead);
            for (int segment = 0; segment < kChunk / kSegment; segment++) {
                if (exists(n + 2)) multiply(n + 2, segment);
                if (exists(n + 1)) weigh_heads(n + 1, segment);
                if (exists(n)) add(n, segment);
            }
        }
    }

private:
    static constexpr int64_t kAhead = 4, kItems = 8;

    struct Weights {
        alignas(64) float scores[kGroup][kChunk];
        float factor[kGroup];
    };

    bool exists(int64_t n) const { return n >= 0 && n < made_; }
    DecodeItem<T>& item(int64_t n) { return items_[n % kItems]; }

    void begin_task() {
        if (task_ < last_task_) at_ = task_->begin / kSegment * kSegment;
    }

    // The item `n` after the one made before, if there is one.
    void make(int64_t n) {
        if (n < made_ || task_ == last_task_) return;
        DecodeItem<T>& next = item(made_++);
        next.task = task_;
        next.head = head_;
        next.first = int(std::max<int64_t>(0, task_->begin - at_));
        next.count = int(std::min<int64_t>(kChunk, task_->end - at_));
        next.slots = ChunkSlots<T>(layer_, task_->table, at_, next.count, task_->head + head_);
        next.slots.prefetch_params();
        if (++head_ < task_->kv_heads) return;
        head_ = 0;
        at_ += kChunk;
        if (at_ < task_->end) return;
        task_++;
        begin_task();
    }

    void multiply(int64_t n, int segment) {
        const DecodeItem<T>& now = item(n);
        if (segment == 0 && now.task != queried_) {
            queried_ = now.task;
            queries_.set(now.task->query, now.task->kv_heads);
        }
        const int first = std::max(now.first, segment * kSegment), last = std::min(now.count, (segment + 1) * kSegment);
        if (first >= last) return;
        const Rows<Number<T>> keys = keys_.keys(now.slots, segment * kSegment, last);
        queries_.multiply(keys, first, last, now.head, products_[n % 2]);
    }

    // A part of the query heads in each segment.
    void weigh_heads(int64_t n, int segment) {
        constexpr int segments = kChunk / kSegment;
        const DecodeItem<T>& now = item(n);
        Weights& weights = weights_[n % 2];
        if constexpr (kQuantised<T>)
            if (segment == 0) scales_.load(layer_, now.slots, now.task->head + now.head);
        for (int g = group_ * segment / segments; g < group_ * (segment + 1) / segments; g++) {
            queries_.take(products_[n % 2], g, weights.scores[g]);
            if constexpr (kQuantised<T>) multiply_all(weights.scores[g], scales_.key);
            OnlineSoftmax& softmax = now.task->softmax[now.head * group_ + g];
            weights.factor[g] = weigh(scoring_, weights.scores[g], now.first, now.count, softmax);
            if constexpr (kQuantised<T>) multiply_all(weights.scores[g], scales_.value);
        }
    }

    void add(int64_t n, int segment) {
        const DecodeItem<T>& now = item(n);
        const Weights& weights = weights_[n % 2];
        float* sums = now.task->sums + now.head * group_ * layer_.head_dim;
        if (segment == 0) shrink(weights, sums);
        const int first = std::max(now.first, segment * kSegment), last = std::min(now.count, (segment + 1) * kSegment);
        const T* const* later = exists(n + kAhead) ? item(n + kAhead).slots.keys : nullptr;
        const Rows<Number<T>> rows = values_.values(now.slots, layer_.value_offset, first, last);
        const Values<T> values{rows, first, last, later, layer_.value_offset};
        if (first < last) add_values(values, weights.scores, group_, layer_.head_dim, sums);
        // A short chunk asks for a whole one as well.
        for (int i = std::max(last, segment * kSegment); i < (segment + 1) * kSegment; i++)
            values.prefetch(i, 0, layer_.vector_size);
    }

    static void multiply_all(float* numbers, const float* factors) {
        for (int i = 0; i < kChunk; i += kLanes) store(numbers + i, load(numbers + i) * load(factors + i));
    }

    void shrink(const Weights& weights, float* sums) const {
        const int64_t dim = layer_.head_dim;
        for (int g = 0; g < group_; g++)
            if (weights.factor[g] != 1.0f)
                for (int64_t d = 0; d < dim; d++) sums[g * dim + d] *= weights.factor[g];
    }

    const PagedLayer<T>& layer_;
    const Scoring& scoring_;
    const int group_;
    const DecodeTask<T>*task_, *last_task_;
    int64_t at_ = 0, head_ = 0, made_ = 0;
    const DecodeTask<T>* queried_ = nullptr;
    DecodeQueries<T> queries_;
    Numbers<T> keys_, values_;
    ChunkScales scales_;
    DecodeItem<T> items_[kItems];
    alignas(64) float products_[2][kChunk * 16];
    Weights weights_[2];
};

}  // namespace kvmesh
