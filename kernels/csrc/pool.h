// The compute threads: a caller and its workers share the tasks of one job after the other.
//
// Tasks are handed out one at a time, so a thread that the system has taken off its processor holds up a job by the one
// task it has begun, not by a fixed share. Idle workers spin for a bounded time (jobs of a decoder step follow each
// other within microseconds), then sleep. One job at a time: the context's lock sees to it.
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
  void run_tasks(int64_t num_tasks, Task task, void* body);
  bool run_one(int thread);
  void finish_waiting();
  void stop();
  void work(int thread);
  void sleep_until_work();
  bool has_tasks() const;

  // Number of the job (24 bits), its number of tasks (20), tasks handed out (20): one word, so that claiming a task and
  // knowing which job it is of are one step. The job's other fields change only while no task is left to claim.
  std::atomic<uint64_t> state_{0};
  std::atomic<Task> task_{nullptr};
  std::atomic<void*> body_{nullptr};
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
