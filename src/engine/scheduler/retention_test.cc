// Conversations whose next turn comes at once, in a pool too small for all: what has ended lately
// is kept for the turn that follows, so few are served to their end instead of all turning each
// other out.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "base/rng.h"
#include "cache/prefix_cache.h"
#include "engine/scheduler/fake_executor.h"
#include "engine/scheduler/scheduler.h"

namespace espalier {
namespace {

using Tokens = std::vector<TokenId>;

struct Load {
  int num_chats = 32, num_turns = 4, num_clients = 16;
  int turn_tokens = 40, output_tokens = 20;
  int reply_steps = 1;  // steps until the caller has made its next turn
  double pool_share = 0.25;
};

struct Outcome {
  double hit_rate = 0, hit_rate_optimal = 0;
  int64_t steps = 0;
};

class Chats final : public SequenceObserver {
 public:
  Chats(const Load& load, int32_t retention_steps) : load_(load), rng_(1) {
    const int turn = load.turn_tokens + load.output_tokens;
    const int64_t unique = int64_t{load.num_chats} * load.num_turns * turn;
    cache_ = make_prefix_cache(
                 {.num_pages = static_cast<int32_t>(load.pool_share * static_cast<double>(unique))})
                 .value();
    scheduler_ = std::make_unique<Scheduler>(SchedulerConfig{.max_running = 64,
                                                             .max_waiting = 1000,
                                                             .chunked_prefill_size = 256,
                                                             .context_length = 4096,
                                                             .retention_steps = retention_steps},
                                             *cache_, clock_, *this);
  }

  Outcome run() {
    int next_chat = 0;
    for (int c = 0; c < load_.num_clients && next_chat < load_.num_chats; ++c)
      begin_chat(next_chat++);
    ForwardBatch batches[2];
    const ForwardBatch* in_flight = nullptr;
    for (int64_t step = 0; !scheduler_->idle() || !to_come_.empty(); ++step) {
      for (auto it = to_come_.begin(); it != to_come_.end() && it->first <= step;
           it = to_come_.erase(it))
        submit(it->second);
      ForwardBatch& batch = batches[step % 2];
      const bool launched = scheduler_->next(batch);
      if (launched) executor_.launch(batch);
      if (in_flight != nullptr) {
        scheduler_->commit(*in_flight, executor_.wait(in_flight->step));
        scheduler_->check_invariants();
      }
      in_flight = launched ? &batch : nullptr;
      for (const SequenceId id : ended_) {
        Chat& chat = chats_[chat_of_[id]];
        if (++chat.turn < load_.num_turns) {
          to_come_.emplace(step + load_.reply_steps, chat_of_[id]);
        } else if (next_chat < load_.num_chats) {
          chats_[next_chat] = {};
          to_come_.emplace(step + load_.reply_steps, next_chat++);
        }
      }
      ended_.clear();
    }
    const SchedulerStats stats = scheduler_->stats();
    // Each turn computes what is new of it, and the last token of the answer before.
    const int64_t least =
        int64_t{load_.num_chats} * (load_.num_turns * load_.turn_tokens + load_.num_turns - 1);
    return {.hit_rate =
                static_cast<double>(stats.cached_tokens) / static_cast<double>(stats.prompt_tokens),
            .hit_rate_optimal =
                1 - static_cast<double>(least) / static_cast<double>(stats.prompt_tokens),
            .steps = stats.steps};
  }

 private:
  struct Chat {
    Tokens tokens;
    int turn = 0;
  };

  void begin_chat(int chat) {
    chats_[chat] = {};
    submit(chat);
  }
  void submit(int chat) {
    Tokens& tokens = chats_[chat].tokens;
    for (int i = 0; i < load_.turn_tokens; ++i)
      tokens.push_back(static_cast<TokenId>(rng_.below(kFakeVocab)));
    const SequenceId id = ++last_id_;
    chat_of_[id] = chat;
    executor_.expect(id, "", tokens);
    SamplingSpec spec;
    spec.seed = id;
    ASSERT_TRUE(scheduler_
                    ->add({.id = id,
                           .prompt_ids = tokens,
                           .sampling = std::make_shared<SamplingSpec>(spec),
                           .max_new_tokens = load_.output_tokens})
                    .ok());
  }

  void on_input_logprobs(SequenceId, int32_t, std::vector<TokenLogprobs>&&) override {}
  std::optional<FinishReason> on_token(SequenceId id, TokenId token, TokenOrigin, TokenLogprobs&&,
                                       const RequestStats&) override {
    chats_[chat_of_[id]].tokens.push_back(token);
    return std::nullopt;
  }
  void on_finish(SequenceId id, FinishReason, const RequestStats&) override {
    ended_.push_back(id);
  }

  const Load load_;
  Rng rng_;
  ManualClock clock_;
  std::unique_ptr<PrefixCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  FakeExecutor executor_{1};
  std::map<int, Chat> chats_;
  std::map<SequenceId, int> chat_of_;
  std::multimap<int64_t, int> to_come_;  // chats by step
  std::vector<SequenceId> ended_;
  SequenceId last_id_ = 0;
};

struct Case {
  double pool_share;
  int reply_steps;
  double least;       // of the optimum
  double least_more;  // hits than without
};

TEST(Retention, ConversationsInASmallPoolKeepTheirPrefixes) {
  for (const Case& c : {Case{0.1, 1, 0.75, 0}, Case{0.1, 2, 0.75, 0.1}, Case{0.25, 1, 0.8, 0},
                        Case{0.25, 2, 0.8, 0.1}, Case{0.5, 2, 0.99, 0}}) {
    SCOPED_TRACE(testing::Message()
                 << "pool " << c.pool_share << ", answered in " << c.reply_steps << " steps");
    const Load load{.reply_steps = c.reply_steps, .pool_share = c.pool_share};
    const Outcome with = Chats(load, 2).run(), without = Chats(load, 0).run();
    EXPECT_GT(with.hit_rate, c.least * with.hit_rate_optimal) << "without: " << without.hit_rate;
    EXPECT_GE(with.hit_rate, without.hit_rate + c.least_more);
    EXPECT_LT(static_cast<double>(with.steps), 1.1 * static_cast<double>(without.steps));
  }
}

}  // namespace
}  // namespace espalier
