#include "engine/nodes/follower.h"

#include <cstring>
#include <utility>

#include "base/fatal_exit.h"
#include "base/log.h"
#include "kernels/kv_layer.h"
#include "nodes/bytes.h"

namespace espalier {
namespace {

constexpr size_t kPlanBytesMax = 8192;
constexpr Duration kReportInterval = std::chrono::seconds(60);

// How many tokens of draft samples a step of the leader's executor has beside its entries.
constexpr int32_t kDraftSamplesMax = 16;

Result<NodePlan> receive_plan(nodes::Link& link) {
  ESP_ASSIGN_OR_RETURN(
      const std::string_view payload,
      link.receive_one(nodes::MessageType::kPlan, kPlanBytesMax, kNodeLoadingWait));
  return decode_node_plan(payload);
}

// The leader's configuration, once it knows how many tokens this node can have.
Result<EngineConfig> agree_on_plan(NodePart& part) {
  nodes::Link& link = part.group->link(0);
  const ModelInfo& info = part.part_info();
  ESP_ASSIGN_OR_RETURN(const NodePlan wish, receive_plan(link));
  const EngineConfig wished = with_plan(part.config, wish);
  if (part.gpu) {
    ESP_ASSIGN_OR_RETURN(part.system, part.gpu->reserve(wished));
  }
  ESP_ASSIGN_OR_RETURN(const EngineConfig own, resolve(wished, info, part.system));
  std::string answer;
  nodes::append_int(answer, own.cache.max_total_tokens);
  ESP_RETURN_IF_ERROR(link.send(nodes::MessageType::kPlan, answer, kNodeLoadingWait));
  ESP_ASSIGN_OR_RETURN(const NodePlan plan, receive_plan(link));
  return resolve(with_plan(part.config, plan), info, part.system);
}

}  // namespace

Follower::Follower(NodePart part, const EngineConfig& effective, std::optional<KvPool> kv)
    : part_(std::move(part)),
      kv_(std::move(kv)),
      limits_(step_limits(effective, part_.part_info(), part_.gpu != nullptr)),
      decoder_(limits_) {}

Result<std::unique_ptr<Follower>> Follower::start(const EngineConfig& config,
                                                  const NodeSettings& settings) {
  ESP_ASSIGN_OR_RETURN(NodePart part, start_node_part(config, settings, end_process_soon));
  nodes::NodeGroup& group = *part.group;
  const auto ready = [&]() -> Result<std::unique_ptr<Follower>> {
    ESP_ASSIGN_OR_RETURN(const EngineConfig effective, agree_on_plan(part));
    if (part.gpu) {
      ESP_RETURN_IF_ERROR(part.gpu->fill(effective));
      return std::unique_ptr<Follower>(new Follower(std::move(part), effective, std::nullopt));
    }
    const ModelInfo info = part.model->info();
    ESP_ASSIGN_OR_RETURN(const KvType type, resolve_kv_type(effective, info));
    ESP_ASSIGN_OR_RETURN(KvPool kv, KvPool::create(kv_pool_config(effective, info, type)));
    ESP_RETURN_IF_ERROR(kernels::check_kv_view(kv.view(), kernels::KvKernels::kCpu));
    ESP_RETURN_IF_ERROR(part.model->reserve(
        step_tokens_max(effective), effective.schedule.max_running_requests + kDraftSamplesMax));
    return std::unique_ptr<Follower>(new Follower(std::move(part), effective, std::move(kv)));
  };
  auto follower = ready();
  if (!follower && group.ok()) {
    group.set_broken(follower.error());
    return fail(group.ok() ? follower.error() : group.status());
  }
  if (!follower) return fail(group.status());
  log_info("node ready node_rank={} nnodes={} ranks_here={} pages={}", settings.node_rank,
           settings.nnodes, config.compute.tp_size / settings.nnodes,
           (*follower)->limits_.num_pages);
  return follower;
}

Status Follower::await_step() {
  nodes::Link& link = part_.group->link(0);
  while (link.stream().buffered().empty()) {
    const Result<bool> more = link.stream().read_more(kReportInterval);
    if (more && !*more) return error(StatusCode::kUnavailable, "the leader closed the connection");
    if (!more && more.error().code() != StatusCode::kDeadlineExceeded) return more.error();
    if (!more)
      log_info("node healthy node_rank={} steps={} tokens={}", part_.group->node(), num_steps_,
               num_tokens_);
  }
  ESP_ASSIGN_OR_RETURN(
      const std::string_view payload,
      link.receive_one(nodes::MessageType::kStep, limits_.bytes_max(), kReportInterval));
  return decoder_.decode(payload);
}

void Follower::copy_pages() {
  const nodes::PageCopies& copies = decoder_.copies();
  const auto copy = [](void* plane, int64_t bytes, PageId from, PageId to) {
    auto* const pages = static_cast<std::byte*>(plane);
    if (from != to)
      std::memcpy(pages + to * bytes, pages + from * bytes, static_cast<size_t>(bytes));
  };
  for (const KvView::Layer& layer : kv_->view().layers)
    for (size_t i = 0; i < copies.from.size(); ++i) {
      copy(layer.k, layer.page_bytes(), copies.from[i], copies.to[i]);
      if (layer.v != layer.k) copy(layer.v, layer.page_bytes(), copies.from[i], copies.to[i]);
    }
}

void Follower::compute_on_cpu() {
  copy_pages();
  const ForwardBatch& batch = decoder_.batch();
  part_.model->forward(batch, batch.token_ids, kv_->view(),
                       [](int32_t, int32_t, std::span<const float>) {});
}

Status Follower::launch_on_gpu() {
  Executor& executor = part_.gpu->executor();
  if (!decoder_.copies().empty())
    ESP_RETURN_IF_ERROR(executor.copy_pages(decoder_.copies().from, decoder_.copies().to));
  if (in_flight_.size() == Executor::kMaxInFlight) {
    executor.wait(in_flight_.front().step);
    in_flight_.pop_front();
  }
  executor.launch(in_flight_.emplace_back(decoder_.batch()));
  return {};
}

Status Follower::run() {
  while (true) {
    const Status status = await_step();
    if (!status.ok()) {
      if (!part_.group->set_broken(status)) return {};
      return part_.group->status();
    }
    if (part_.gpu) {
      if (const Status launched = launch_on_gpu(); !launched.ok())
        part_.group->set_failure(launched);
    } else {
      compute_on_cpu();
    }
    if (!part_.group->ok()) return part_.group->status();
    ++num_steps_;
    num_tokens_ += decoder_.batch().num_tokens();
  }
}

}  // namespace espalier
