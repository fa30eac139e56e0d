// boost::lockfree::spsc_queue for items of 8 and of 64 bytes, to be called from boost.rs.

#include <array>
#include <boost/lockfree/spsc_queue.hpp>
#include <cstddef>
#include <cstdint>

namespace {

template <std::size_t words>
using Item = std::array<std::uint64_t, words>;

template <std::size_t words>
using Queue = boost::lockfree::spsc_queue<Item<words>>;

template <std::size_t words>
Queue<words> &queue(void *pointer) {
    return *static_cast<Queue<words> *>(pointer);
}

} // namespace

#define QUEUE_OF(bytes)                                                                              \
    extern "C" void *boost_spsc_new_##bytes(std::size_t capacity) {                                  \
        return new Queue<bytes / 8>(capacity);                                                       \
    }                                                                                                \
    extern "C" void boost_spsc_delete_##bytes(void *pointer) {                                       \
        delete &queue<bytes / 8>(pointer);                                                           \
    }                                                                                                \
    extern "C" std::size_t boost_spsc_push_##bytes(void *pointer, const void *items,                 \
                                                   std::size_t count) {                              \
        auto *first = static_cast<const Item<bytes / 8> *>(items);                                   \
        return queue<bytes / 8>(pointer).push(first, count);                                         \
    }                                                                                                \
    extern "C" bool boost_spsc_push_one_##bytes(void *pointer, const void *item) {                   \
        return queue<bytes / 8>(pointer).push(*static_cast<const Item<bytes / 8> *>(item));          \
    }                                                                                                \
    extern "C" std::size_t boost_spsc_pop_##bytes(void *pointer, void *items, std::size_t count) {   \
        return queue<bytes / 8>(pointer).pop(static_cast<Item<bytes / 8> *>(items), count);          \
    }                                                                                                \
    extern "C" bool boost_spsc_pop_one_##bytes(void *pointer, void *item) {                          \
        return queue<bytes / 8>(pointer).pop(*static_cast<Item<bytes / 8> *>(item));                 \
    }

QUEUE_OF(8)
QUEUE_OF(64)
