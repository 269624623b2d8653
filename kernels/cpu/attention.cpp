// Paged attention for a ragged step in one call a layer: decode rows, prefill rows, both.
#include <memory>
#include <vector>

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
    const T* query;  // [tokens, heads, head_dim]
    T* out;
    std::vector<Row> rows;
    int threads;
};

// What one thread computes at a time: queries of a row and the KV heads from `head` on; for a
// decode row, some of its keys. Long rows are split when there are fewer rows than threads.
struct Task {
    const Row* row;
    int64_t head, heads;
    int64_t begin, end;     // keys of a decode row; queries of another
    int64_t part = 0, parts = 1;
};

bool decodes(const Row& row, const Shape& shape) { return row.end - row.start == 1 && shape.group() <= kGroup; }

constexpr int64_t kSplitKeys = 512;  // shorter parts cost more to join than they save

template <typename T>
void add_decode_tasks(const Step<T>& step, const Row& row, int64_t pieces, std::vector<Task>& tasks) {
    const int64_t begin = step.scoring.first_key(row.end - 1), keys = row.end - begin;
    const int64_t head_parts = std::min<int64_t>(pieces, step.shape.kv_heads);
    const int64_t wanted = ceil_div(pieces, head_parts);
    const int64_t parts = std::max<int64_t>(1, std::min(wanted, keys / kSplitKeys));
    for (int64_t h = 0; h < head_parts; h++) {
        const int64_t head = step.shape.kv_heads * h / head_parts;
        const int64_t next = step.shape.kv_heads * (h + 1) / head_parts;
        for (int64_t p = 0; p < parts; p++)
            tasks.push_back({&row, head, next - head, begin + keys * p / parts, begin + keys * (p + 1) / parts, p, parts});
    }
}

template <typename T>
std::vector<Task> make_tasks(const Step<T>& step) {
    // With several threads, a few tasks for each, so that a slow core holds up little.
    const int64_t wanted = step.threads == 1 ? 1 : 3 * step.threads;
    const int64_t pieces = ceil_div(wanted, std::max<int64_t>(1, step.rows.size()));
    std::vector<Task> tasks;
    for (const Row& row : step.rows) {
        if (decodes(row, step.shape)) {
            add_decode_tasks(step, row, pieces, tasks);
            continue;
        }
        const int64_t queries = std::max<int64_t>(1, kColumns / step.shape.group());
        for (int64_t h = 0; h < step.shape.kv_heads; h++)
            for (int64_t q = row.start; q < row.end; q += queries)
                tasks.push_back({&row, h, 1, q, std::min(row.end, q + queries)});
    }
    return tasks;
}

// Sums and softmax of the query heads of one task; those of a split row wait here for the others.
struct Partial {
    std::vector<float> sums;
    std::vector<OnlineSoftmax> softmax;
};

template <typename T>
void write_heads(const Partial& partial, int64_t head_dim, T* out) {
    float sums[kMaxDim];
    for (size_t h = 0; h < partial.softmax.size(); h++) {
        unpair<T>(&partial.sums[h * head_dim], head_dim, sums);
        const float factor = 1.0f / partial.softmax[h].total;
        for (int64_t d = 0; d < head_dim; d++) store(out[h * head_dim + d], sums[d] * factor);
    }
}

template <typename T>
int64_t task_offset(const Step<T>& step, const Task& task) {
    return (task.row->first * step.shape.heads + task.head * step.shape.group()) * step.shape.head_dim;
}

template <typename T>
void run_decode(const Step<T>& step, const Task& task, Partial& partial) {
    const int group = int(step.shape.group());
    const int64_t dim = step.shape.head_dim, heads = task.heads * group;
    partial.sums.assign(heads * dim, 0.0f);
    partial.softmax.assign(heads, OnlineSoftmax());
    const int64_t at = task_offset(step, task);
    decode(step.layer, step.scoring, task.row->table, task.begin, task.end, task.head, task.heads, group,
           step.query + at, partial.softmax.data(), partial.sums.data());
    if (task.parts == 1) write_heads(partial, dim, step.out + at);
}

// Joins the parts of a split row: each was summed relative to its own highest score.
template <typename T>
void join_parts(const Step<T>& step, const Task* tasks, Partial* partials) {
    const int64_t dim = step.shape.head_dim;
    Partial& all = partials[0];
    for (int64_t p = 1; p < tasks[0].parts; p++)
        for (size_t h = 0; h < all.softmax.size(); h++) {
            const OnlineSoftmax part = partials[p].softmax[h];
            const float shrink = all.softmax[h].raise(part.highest);
            const float factor = fast_exp(part.highest - all.softmax[h].highest);
            all.softmax[h].total += part.total * factor;
            for (int64_t d = 0; d < dim; d++)
                all.sums[h * dim + d] = all.sums[h * dim + d] * shrink + partials[p].sums[h * dim + d] * factor;
        }
    write_heads(all, dim, step.out + task_offset(step, tasks[0]));
}

template <typename T>
void run_prefill(const Step<T>& step, const Task& task) {
    thread_local const std::unique_ptr<PrefillScratch> scratch = std::make_unique<PrefillScratch>();
    const Shape& shape = step.shape;
    const int64_t token_stride = shape.heads * shape.head_dim;
    const int64_t at = task_offset(step, task) + (task.begin - task.row->start) * token_stride;
    const QueryTile<T> tile{step.query + at, step.out + at, token_stride, int(shape.group()),
                            task.begin, task.end, task.head, task.row->table};
#if defined(KVMESH_AMX)
    if constexpr (std::is_same_v<T, bf16>)
        if (TileProducts::fit(step.layer)) return prefill_with<TileProducts>(step.layer, step.scoring, tile, *scratch);
#endif
    prefill_with<PlainProducts>(step.layer, step.scoring, tile, *scratch);
}

template <typename T>
void run(const Step<T>& step) {
    const std::vector<Task> tasks = make_tasks(step);
    std::vector<Partial> partials(tasks.size());
#pragma omp parallel num_threads(step.threads) if (step.threads > 1 && tasks.size() > 1)
    {
#if defined(KVMESH_AMX)
        if (amx_ready()) configure_tiles(16, 16, 16);
#endif
#pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < tasks.size(); i++) {
            if (decodes(*tasks[i].row, step.shape))
                run_decode(step, tasks[i], partials[i]);
            else
                run_prefill(step, tasks[i]);
        }
#if defined(KVMESH_AMX)
        if (amx_ready()) _tile_release();
#endif
    }
    for (size_t i = 0; i < tasks.size(); i += tasks[i].parts)
        if (tasks[i].parts > 1) join_parts(step, &tasks[i], &partials[i]);
}

template <typename T>
void attend(const void* pool, const int64_t* sizes, int64_t layer, int64_t num_rows, const int64_t* spans,
            const int32_t* tables, const void* query, void* out, const Scoring& scoring, int threads) {
    const int64_t heads = sizes[1], kv_heads = sizes[2], block_size = sizes[3], head_dim = sizes[4];
    Step<T> step{PagedLayer<T>(static_cast<const T*>(pool), sizes[0], layer, kv_heads, block_size, head_dim),
                 {heads, kv_heads, head_dim}, scoring, static_cast<const T*>(query), static_cast<T*>(out), {}, threads};
    for (int64_t i = 0, first = 0; i < num_rows; i++, spans += 3) {
        step.rows.push_back({first, spans[0], spans[1], tables + spans[2]});
        first += spans[1] - spans[0];
    }
    run(step);
}

}  // namespace

// pool: [blocks, layers, 2, kv_heads, block_size, head_dim]. sizes: layers, heads, kv_heads,
// block_size, head_dim. spans [rows, 3]: the positions start and end of a row's new tokens, and where
// its block table begins in `tables`. query, out: [tokens, heads, head_dim].
extern "C" void kvmesh_attention(const void* pool, int32_t is_bfloat16, const int64_t* sizes, int64_t layer,
                                 int64_t num_rows, const int64_t* spans, const int32_t* tables, const void* query,
                                 void* out, float scale, int64_t window, float softcap, int32_t threads) {
    const Scoring scoring{scale, window, softcap};
    (is_bfloat16 ? attend<bf16> : attend<float>)(pool, sizes, layer, num_rows, spans, tables, query, out, scoring,
                                                 threads);
}
