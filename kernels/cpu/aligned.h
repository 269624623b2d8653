// Memory that starts on a cache line: a tile whose rows cross lines takes twice the time to load.
#pragma once
#include <cstddef>
#include <new>
#include <vector>

namespace kvmesh {

template <typename T>
struct LineAllocator {
    using value_type = T;

    LineAllocator() = default;
    template <typename Other>
    LineAllocator(const LineAllocator<Other>&) {}

    T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t{64})); }
    void deallocate(T* memory, size_t) { ::operator delete(memory, std::align_val_t{64}); }

    bool operator==(const LineAllocator&) const { return true; }
    bool operator!=(const LineAllocator&) const { return false; }
};

template <typename T>
using LineVector = std::vector<T, LineAllocator<T>>;

}  // namespace kvmesh
