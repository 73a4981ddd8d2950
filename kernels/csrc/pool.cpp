#include "pool.h"

#include <chrono>

namespace hr {
namespace {

constexpr int kCountBits = 20;
constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;
constexpr int64_t kMaxTasks = static_cast<int64_t>(kCountMask);
constexpr std::chrono::microseconds kSpin{50};
constexpr int kPausesBetweenClockReads = 16;

uint64_t num_claimed(uint64_t state) { return state & kCountMask; }
uint64_t num_tasks_of(uint64_t state) { return (state >> kCountBits) & kCountMask; }

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Whether `is_true` became true within the time that spinning is cheaper than sleeping.
template <class Condition>
bool spin_until(const Condition& is_true) {
  if (is_true()) return true;
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesBetweenClockReads; ++i) {
      pause();
      if (is_true()) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

Pool::Pool(int num_threads) {
  try {
    for (int thread = 1; thread < num_threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
  } catch (...) {  // no more threads or memory: those that were started must end first
    stop();
    throw;
  }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stops_.store(true);
  }
  has_work_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool Pool::has_tasks() const {
  const uint64_t state = state_.load(std::memory_order_seq_cst);
  return num_claimed(state) < num_tasks_of(state);
}

void Pool::run_tasks(int64_t num_tasks, Task task, void* body) {
  if (workers_.empty() || num_tasks == 1) {
    for (int64_t index = 0; index < num_tasks; ++index) task(body, index, 0);
    return;
  }
  struct Part {
    Task task;
    void* body;
    int64_t first;
  };
  for (int64_t first = 0; first < num_tasks; first += kMaxTasks) {
    Part part{task, body, first};
    const int64_t count = num_tasks - first < kMaxTasks ? num_tasks - first : kMaxTasks;
    task_.store([](void* p, int64_t index, int thread) {
      const Part& whole = *static_cast<const Part*>(p);
      whole.task(whole.body, whole.first + index, thread);
    }, std::memory_order_relaxed);
    body_.store(&part, std::memory_order_relaxed);
    num_unfinished_.store(count, std::memory_order_relaxed);
    const uint64_t job = (state_.load(std::memory_order_relaxed) >> (2 * kCountBits)) + 1;
    state_.store((job << (2 * kCountBits)) | (static_cast<uint64_t>(count) << kCountBits), std::memory_order_seq_cst);
    if (num_sleepers_.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      has_work_.notify_all();
    }
    while (run_one(0)) {
    }
    finish_waiting();
  }
}

bool Pool::run_one(int thread) {
  uint64_t state = state_.load(std::memory_order_acquire);
  while (num_claimed(state) < num_tasks_of(state)) {
    const Task task = task_.load(std::memory_order_relaxed);
    void* const body = body_.load(std::memory_order_relaxed);
    if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    task(body, static_cast<int64_t>(num_claimed(state)), thread);
    if (num_unfinished_.fetch_sub(1, std::memory_order_seq_cst) == 1 && caller_sleeps_.load(std::memory_order_seq_cst)) {
      std::lock_guard<std::mutex> lock(mutex_);
      is_done_.notify_one();
    }
    return true;
  }
  return false;
}

void Pool::finish_waiting() {
  const auto is_done = [this] { return num_unfinished_.load(std::memory_order_seq_cst) == 0; };
  if (spin_until(is_done)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  caller_sleeps_.store(true, std::memory_order_seq_cst);
  is_done_.wait(lock, is_done);
  caller_sleeps_.store(false, std::memory_order_relaxed);
}

void Pool::work(int thread) {
  while (!stops_.load(std::memory_order_relaxed)) {
    if (!run_one(thread) && !spin_until([this] { return has_tasks() || stops_.load(std::memory_order_relaxed); })) {
      sleep_until_work();
    }
  }
}

void Pool::sleep_until_work() {
  std::unique_lock<std::mutex> lock(mutex_);
  num_sleepers_.fetch_add(1, std::memory_order_seq_cst);
  has_work_.wait(lock, [this] { return has_tasks() || stops_.load(std::memory_order_relaxed); });
  num_sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace hr
