#include "pool.h"

#include <chrono>

namespace hr {
namespace {

constexpr int kCountBits = 20;
constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;
constexpr int64_t kMaxTasks = static_cast<int64_t>(kCountMask);
constexpr std::chrono::microseconds kSpin{50};
constexpr int kPausesBetweenClockReads = 16;

uint64_t make_word(uint64_t job, int64_t first, int64_t end) {
  return (job << (2 * kCountBits)) | (static_cast<uint64_t>(first) << kCountBits) | static_cast<uint64_t>(end);
}

int64_t first_of(uint64_t word) { return static_cast<int64_t>((word >> kCountBits) & kCountMask); }
int64_t end_of(uint64_t word) { return static_cast<int64_t>(word & kCountMask); }

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

Pool::Pool(int num_threads) : shares_(static_cast<size_t>(num_threads)) {
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
    num_jobs_.fetch_add(1);
  }
  has_work_.notify_all();
  for (std::thread& worker : workers_) worker.join();
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
    const auto run = [](void* p, int64_t index, int thread) {
      const Part& whole = *static_cast<const Part*>(p);
      whole.task(whole.body, whole.first + index, thread);
    };
    run_part(num_tasks - first < kMaxTasks ? num_tasks - first : kMaxTasks, run, &part);
  }
}

void Pool::run_part(int64_t num_tasks, Task task, void* body) {
  task_.store(task, std::memory_order_relaxed);
  body_.store(body, std::memory_order_relaxed);
  num_unfinished_.store(num_tasks, std::memory_order_relaxed);
  const uint64_t job = num_jobs_.load(std::memory_order_relaxed) + 1;
  const int64_t num_shares = static_cast<int64_t>(shares_.size());
  for (int64_t share = 0; share < num_shares; ++share) {
    const int64_t first = num_tasks * share / num_shares, end = num_tasks * (share + 1) / num_shares;
    shares_[static_cast<size_t>(share)].word.store(make_word(job, first, end), std::memory_order_release);
  }
  num_jobs_.store(job, std::memory_order_seq_cst);
  if (num_sleepers_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    has_work_.notify_all();
  }
  drain(0);
  wait_until_done();
}

// Runs tasks until none is left to take: its own share first, then the others'.
void Pool::drain(int thread) {
  const int num_shares = static_cast<int>(shares_.size());
  for (int i = 0; i < num_shares; ++i) {
    const int owner = thread + i < num_shares ? thread + i : thread + i - num_shares;
    while (run_one_of(owner, thread)) {
    }
  }
}

bool Pool::run_one_of(int owner, int thread) {
  std::atomic<uint64_t>& share = shares_[static_cast<size_t>(owner)].word;
  uint64_t word = share.load(std::memory_order_acquire);
  while (first_of(word) < end_of(word)) {
    // These are of the word's job if the word has not changed when the task is taken.
    const Task task = task_.load(std::memory_order_relaxed);
    void* const body = body_.load(std::memory_order_relaxed);
    const bool is_own = owner == thread;
    const uint64_t rest = is_own ? word + (uint64_t{1} << kCountBits) : word - 1;
    if (!share.compare_exchange_weak(word, rest, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    task(body, is_own ? first_of(word) : end_of(word) - 1, thread);
    if (num_unfinished_.fetch_sub(1, std::memory_order_seq_cst) == 1 && caller_sleeps_.load(std::memory_order_seq_cst)) {
      std::lock_guard<std::mutex> lock(mutex_);
      is_done_.notify_one();
    }
    return true;
  }
  return false;
}

void Pool::wait_until_done() {
  const auto is_done = [this] { return num_unfinished_.load(std::memory_order_seq_cst) == 0; };
  if (spin_until(is_done)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  caller_sleeps_.store(true, std::memory_order_seq_cst);
  is_done_.wait(lock, is_done);
  caller_sleeps_.store(false, std::memory_order_relaxed);
}

void Pool::work(int thread) {
  uint64_t seen = 0;
  while (true) {
    if (!spin_until([&] { return num_jobs_.load(std::memory_order_acquire) != seen; })) sleep_until_next(seen);
    seen = num_jobs_.load(std::memory_order_acquire);
    if (stops_.load(std::memory_order_relaxed)) return;
    drain(thread);
  }
}

void Pool::sleep_until_next(uint64_t seen) {
  std::unique_lock<std::mutex> lock(mutex_);
  num_sleepers_.fetch_add(1, std::memory_order_seq_cst);
  has_work_.wait(lock, [&] { return num_jobs_.load(std::memory_order_seq_cst) != seen; });
  num_sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace hr
