// The compute threads: a caller and its workers share the tasks of one job after the other.
//
// Each thread begins with a share of consecutive tasks, so that it reads on where it was in memory, and takes them one
// by one from the front; a thread that has none left takes from the back of another's. So one that the system has taken
// off its processor holds up a job by the task it has begun, not by its share. Idle workers spin for a bounded time
// (jobs of a decoder step follow each other within microseconds), then sleep. One job at a time: the context's lock
// sees to it.
#ifndef HEADRACE_POOL_H
#define HEADRACE_POOL_H

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace hr {

class Pool {
 public:
  using Task = void (*)(void* body, int64_t task, int thread);

  explicit Pool(int num_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(task, thread) for task 0..num_tasks-1, on any threads in any order; thread is in 0..num_threads-1 and no
  // two run at once under one number. Returns when all are done. The body must not throw and not call run.
  template <class Body>
  void run(int64_t num_tasks, const Body& body) {
    run_tasks(num_tasks, [](void* b, int64_t task, int thread) { (*static_cast<const Body*>(b))(task, thread); },
              const_cast<Body*>(&body));
  }

 private:
  // Tasks of one thread that nobody has taken yet, and of which job they are (24 bits), in one word: taking one and
  // knowing what it belongs to are one step. 20 bits each for the first and the end.
  struct alignas(64) Share {
    std::atomic<uint64_t> word{0};
  };

  void run_tasks(int64_t num_tasks, Task task, void* body);
  void run_part(int64_t num_tasks, Task task, void* body);
  void drain(int thread);
  bool run_one_of(int owner, int thread);
  void wait_until_done();
  void work(int thread);
  void sleep_until_next(uint64_t seen);
  void stop();

  std::vector<Share> shares_;
  // The job's fields change only while no task is left to take.
  std::atomic<Task> task_{nullptr};
  std::atomic<void*> body_{nullptr};
  alignas(64) std::atomic<uint64_t> num_jobs_{0};
  alignas(64) std::atomic<int64_t> num_unfinished_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<int> num_sleepers_{0};
  std::atomic<bool> stops_{false};
  std::mutex mutex_;
  std::condition_variable has_work_;
  std::condition_variable is_done_;
  std::vector<std::thread> workers_;
};

}  // namespace hr
#endif
