// Paged attention for a ragged step in one call a layer: decode rows, prefill rows, both.
#include <memory>
#include <vector>

#include "api.h"
#include "decode.h"
#include "prefill.h"
#include "prefill_amx.h"

using namespace kvmesh;

namespace {

struct Shape {
    int64_t heads, kv_heads, head_dim;
    int64_t group() const { return heads / kv_heads; }
};

template <typename T>
struct Step {
    PagedLayer<T> layer;
    Shape shape;
    Scoring scoring;
    const Number<T>* query;  // [tokens, heads, head_dim]
    Number<T>* out;
    std::vector<Row> rows;
    int threads;
};

// Queries [begin, end) of a row for one KV head.
struct PrefillPart {
    const Row* row;
    int64_t head, begin, end;
};

// Keys [begin, end) of a row that decodes, for some KV heads. Long rows are split when there are fewer rows
// than threads.
struct DecodePart {
    const Row* row;
    int64_t head, heads, begin, end;
    int64_t part, parts;
};

bool decodes(const Row& row, const Shape& shape) { return row.end - row.start == 1 && shape.group() <= kGroup; }

constexpr int64_t kSplitKeys = 512;  // shorter parts cost more to join than they save

template <typename T>
void split_keys(const Step<T>& step, const Row& row, int64_t pieces, std::vector<DecodePart>& parts) {
    const int64_t begin = step.scoring.first_key(row.end - 1), keys = row.end - begin;
    const int64_t head_parts = std::min<int64_t>(pieces, step.shape.kv_heads);
    const int64_t wanted = ceil_div(pieces, head_parts);
    const int64_t count = std::max<int64_t>(1, std::min(wanted, keys / kSplitKeys));
    for (int64_t h = 0; h < head_parts; h++) {
        const int64_t head = step.shape.kv_heads * h / head_parts;
        const int64_t next = step.shape.kv_heads * (h + 1) / head_parts;
        for (int64_t p = 0; p < count; p++)
            parts.push_back({&row, head, next - head, begin + keys * p / count, begin + keys * (p + 1) / count, p, count});
    }
}

template <typename T>
std::vector<DecodePart> decode_parts(const Step<T>& step) {
    // With several threads, a few parts for each, so that a slow core holds up little.
    const int64_t wanted = step.threads == 1 ? 1 : 3 * step.threads;
    const int64_t pieces = ceil_div(wanted, std::max<int64_t>(1, step.rows.size()));
    std::vector<DecodePart> parts;
    for (const Row& row : step.rows)
        if (decodes(row, step.shape)) split_keys(step, row, pieces, parts);
    return parts;
}

template <typename T>
std::vector<PrefillPart> prefill_parts(const Step<T>& step) {
    const int64_t queries = std::max<int64_t>(1, kColumns / step.shape.group());
    std::vector<PrefillPart> parts;
    for (const Row& row : step.rows)
        if (!decodes(row, step.shape))
            for (int64_t h = 0; h < step.shape.kv_heads; h++)
                for (int64_t q = row.start; q < row.end; q += queries)
                    parts.push_back({&row, h, q, std::min(row.end, q + queries)});
    return parts;
}

// Of the query heads of all parts that decode, one part behind the other.
struct Sums {
    LineVector<float> sums;
    std::vector<OnlineSoftmax> softmax;
};

template <typename T>
int64_t query_offset(const Step<T>& step, const Row& row, int64_t head) {
    return (row.first * step.shape.heads + head * step.shape.group()) * step.shape.head_dim;
}

template <typename T>
void write_heads(const Step<T>& step, const DecodeTask<T>& task, int64_t heads, Number<T>* out) {
    const int64_t head_dim = step.shape.head_dim;
    float sums[kMaxDim];
    for (int64_t h = 0; h < heads; h++) {
        unpair<Number<T>>(task.sums + h * head_dim, head_dim, sums);
        const float factor = 1.0f / task.softmax[h].total;
        const float* centre = step.layer.value_centre(task.head + h / step.shape.group());
        for (int64_t d = 0; d < head_dim; d++)
            store(out[h * head_dim + d], sums[d] * factor + (centre ? centre[d] : 0.0f));
    }
}

// Adds a part of a split row to its first part: each was summed relative to its own base.
template <typename T>
void join(const DecodeTask<T>& all, const DecodeTask<T>& part, int64_t heads, int64_t dim) {
    for (int64_t h = 0; h < heads; h++) {
        const float shrink = all.softmax[h].raise(part.softmax[h].base);
        const float factor = exp2(part.softmax[h].base - all.softmax[h].base);
        all.softmax[h].total += part.softmax[h].total * factor;
        for (int64_t d = h * dim; d < (h + 1) * dim; d++) all.sums[d] = all.sums[d] * shrink + part.sums[d] * factor;
    }
}

template <typename T>
std::vector<DecodeTask<T>> decode_tasks(const Step<T>& step, const std::vector<DecodePart>& parts, Sums& all) {
    const int64_t dim = step.shape.head_dim, group = step.shape.group();
    int64_t heads = 0;
    for (const DecodePart& part : parts) heads += part.heads * group;
    all.sums.assign(heads * dim, 0.0f);
    all.softmax.assign(heads, OnlineSoftmax());
    std::vector<DecodeTask<T>> tasks;
    heads = 0;
    for (const DecodePart& part : parts) {
        tasks.push_back({part.row->table, part.begin, part.end, part.head, part.heads,
                         step.query + query_offset(step, *part.row, part.head), &all.softmax[heads],
                         &all.sums[heads * dim]});
        heads += part.heads * group;
    }
    return tasks;
}

template <typename T>
void finish(const Step<T>& step, const std::vector<DecodePart>& parts, const std::vector<DecodeTask<T>>& tasks) {
    for (size_t i = 0; i < tasks.size(); i += parts[i].parts) {
        const int64_t heads = parts[i].heads * step.shape.group();
        for (int64_t p = 1; p < parts[i].parts; p++) join(tasks[i], tasks[i + p], heads, step.shape.head_dim);
        write_heads(step, tasks[i], heads, step.out + query_offset(step, *parts[i].row, parts[i].head));
    }
}

template <typename T>
void run_prefill(const Step<T>& step, const PrefillPart& part) {
    thread_local const std::unique_ptr<PrefillScratch> scratch = std::make_unique<PrefillScratch>();
    const Shape& shape = step.shape;
    const int64_t token_stride = shape.heads * shape.head_dim;
    const int64_t at = query_offset(step, *part.row, part.head) + (part.begin - part.row->start) * token_stride;
    const QueryTile<Number<T>> tile{step.query + at, step.out + at, token_stride, int(shape.group()),
                            part.begin, part.end, part.head, part.row->table};
#if defined(KVMESH_AMX)
    if constexpr (std::is_same_v<Number<T>, bf16>)
        if (TileProducts::fit(step.layer)) return prefill_with<TileProducts>(step.layer, step.scoring, tile, *scratch);
#endif
    prefill_with<PlainProducts>(step.layer, step.scoring, tile, *scratch);
}

template <typename T>
void run(const Step<T>& step) {
    const std::vector<PrefillPart> prefills = prefill_parts(step);
    const std::vector<DecodePart> parts = decode_parts(step);
    Sums sums;
    const std::vector<DecodeTask<T>> tasks = decode_tasks(step, parts, sums);
    // Streams are as long as can be, but a few for each thread.
    const size_t streams = step.threads == 1 ? 1 : std::min<size_t>(tasks.size(), 4 * step.threads);
    const size_t units = prefills.size() + streams;
#pragma omp parallel num_threads(step.threads) if (step.threads > 1 && units > 1)
    {
#if defined(KVMESH_AMX)
        if (amx_ready()) configure_tiles(16, 16, 16);
#endif
#pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < units; i++) {
            if (i < prefills.size()) {
                run_prefill(step, prefills[i]);
                continue;
            }
            const size_t stream = i - prefills.size();
            const size_t begin = tasks.size() * stream / streams, end = tasks.size() * (stream + 1) / streams;
            DecodeStream<T>(step.layer, step.scoring, int(step.shape.group()), &tasks[begin], end - begin).run();
        }
#if defined(KVMESH_AMX)
        if (amx_ready()) _tile_release();
#endif
    }
    finish(step, parts, tasks);
}

template <typename T>
void attend(void* pool, const PoolSizes& sizes, int64_t layer, int64_t num_rows, const int64_t* spans,
            const int32_t* tables, const void* query, void* out, const Scoring& scoring, int threads) {
    Step<T> step{PagedLayer<T>(pool, sizes, layer), {sizes.heads, sizes.kv_heads, sizes.head_dim}, scoring,
                 static_cast<const Number<T>*>(query), static_cast<Number<T>*>(out), {}, threads};
    for (int64_t i = 0, first = 0; i < num_rows; i++, spans += kRowSpan) {
        step.rows.push_back(read_row(spans, tables, first, sizes.block_size));
        first += spans[1] - spans[0];
    }
    run(step);
}

}  // namespace

// pool: blocks of `kind` as `sizes` describes them. spans [rows, 4]: see read_row. query, out: [tokens, heads, head_dim], float32
// where the pool is, else bfloat16.
extern "C" void kvmesh_attention(void* pool, int32_t kind, const PoolSizes* sizes, int64_t layer,
                                 int64_t num_rows, const int64_t* spans, const int32_t* tables, const void* query,
                                 void* out, float scale, int64_t window, float softcap, int32_t threads) {
    const Scoring scoring{scale, window, softcap};
    with_kind(kind, [&](auto element) {
        attend<decltype(element)>(pool, *sizes, layer, num_rows, spans, tables, query, out, scoring, threads);
    });
}
