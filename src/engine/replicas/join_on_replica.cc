#include "engine/replicas/join_on_replica.h"

#include <memory>
#include <mutex>
#include <utility>

namespace espalier {
namespace {

// One call; shared by the sinks of the requests that compute its branches.
struct Joining {
  Engine& replica;
  JoinRequest request;
  JoinDone done;
  std::mutex mutex;
  size_t num_open = 0;  // branches that are being computed
  Status failed;
};

// A branch has been computed, or could not be.
void on_branch(const std::shared_ptr<Joining>& joining, const Status& status) {
  {
    std::lock_guard lock(joining->mutex);
    if (joining->failed.ok()) joining->failed = status;
    if (--joining->num_open > 0) return;
  }
  if (!joining->failed.ok()) return joining->done(fail(joining->failed));
  joining->replica.join_branches(joining->request, joining->done);
}

void compute_branches(const std::shared_ptr<Joining>& joining) {
  const JoinRequest& request = joining->request;
  joining->num_open = request.branches.size();
  for (const std::vector<TokenId>& branch : request.branches) {
    GenerateRequest computed{.input_ids = request.prefix,
                             .sampling = {.max_new_tokens = 0},
                             .extra_key = request.extra_key};
    computed.input_ids.insert(computed.input_ids.end(), branch.begin(), branch.end());
    const auto submitted =
        joining->replica.submit(std::move(computed), [joining](TokenEvent&& event) {
          if (event.finish) on_branch(joining, event.finish->status);
        });
    if (!submitted) on_branch(joining, submitted.error());
  }
}

}  // namespace

void join_on_replica(Engine& replica, JoinRequest request, JoinDone done) {
  // Shared: the last of the sinks ends it.
  const std::shared_ptr<Joining> joining(
      new Joining{.replica = replica, .request = std::move(request), .done = std::move(done)});
  replica.join_branches(joining->request, [joining](Result<JoinedPrompt> joined) {
    if (!joined && joined.error().code() == StatusCode::kFailedPrecondition)
      return compute_branches(joining);
    joining->done(std::move(joined));
  });
}

}  // namespace espalier
