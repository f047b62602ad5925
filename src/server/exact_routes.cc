// POST /exact_likelihood: how probable choices are after a prompt, each summed over all the ways in
// which the vocabulary spells it. No route of SGLang's; the frontend's `exact_likelihood` uses it.
#include <algorithm>
#include <atomic>
#include <boost/json/value.hpp>
#include <mutex>
#include <optional>

#include "engine/requests/exact_search.h"
#include "server/authorize.h"
#include "server/cache_namespace.h"
#include "server/errors.h"
#include "server/json_fields.h"
#include "server/json_writer.h"
#include "server/routes.h"

namespace espalier::server {

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

struct ExactBody {
  std::string text;
  std::vector<TokenId> input_ids;
  std::vector<std::string> choices;
  std::string rid, extra_key;
};

const Fields<ExactBody>& exact_fields() {
  using B = ExactBody;
  static const Fields<B> fields = {
      field<B>("text", "the prompt", &B::text),
      field<B>("input_ids", "the prompt as tokens, instead of text", &B::input_ids),
      field<B>("choices", "the texts whose probability is asked for", &B::choices),
      field<B>("rid", "by which it can be aborted", &B::rid),
      field<B>("extra_key", "as in /generate", &B::extra_key),
  };
  return fields;
}

constexpr size_t kChoicesMax = 1024;

Status check(const ExactBody& body) {
  if (body.choices.empty() || body.choices.size() > kChoicesMax)
    return invalid_argument("choices holds {} texts, but must hold 1 to {}", body.choices.size(),
                            kChoicesMax);
  if (std::ranges::any_of(body.choices, &std::string::empty))
    return invalid_argument("choices: a choice is empty: every text begins with it");
  if (body.text.empty() == body.input_ids.empty())
    return invalid_argument("give the prompt, as text or as input_ids");
  return {};
}

void add_rate_limits(Tenant& tenant, HttpResponse& response) {
  for (auto& header : tenant.rate_limit_headers(std::chrono::steady_clock::now()))
    response.headers.push_back(std::move(header));
}

// One call: a search for each choice at once, each with one question open. Kept alive by them.
class ExactCall : public std::enable_shared_from_this<ExactCall> {
 public:
  ExactCall(ContextPtr context, ResponsePtr response, ExactBody body, std::vector<TokenId> prompt,
            TenantPtr tenant)
      : context_(std::move(context)),
        response_(std::move(response)),
        body_(std::move(body)),
        prompt_(std::move(prompt)),
        tenant_(std::move(tenant)),
        found_(body_.choices.size()),
        num_open_(body_.choices.size()) {}

  // Takes the tokens of the prompt and one for each choice of the tenant's limits; what the
  // searches compute beyond is taken at the end. Else how long to wait.
  std::optional<Duration> admit() {
    if (tenant_ == nullptr) return std::nullopt;
    const int64_t tokens = std::ssize(prompt_) + std::ssize(body_.choices);
    const auto wait = tenant_->admit(tokens, std::chrono::steady_clock::now());
    if (!wait) reservation_.emplace(tenant_, tokens);
    return wait;
  }

  void begin() {
    const auto self = shared_from_this();
    response_->on_disconnect([self] {
      self->gone_ = true;
      self->context_->engine.abort(self->body_.rid + "/", Engine::AbortScope::kPrefix);
    });
    const std::shared_ptr<const Speller> speller = context_->speller();
    for (size_t i = 0; i < body_.choices.size(); ++i) {
      auto num_asked = std::make_shared<int>(0);
      exact_probability(
          speller, body_.choices[i], {},
          [self, i, num_asked](const std::vector<TokenId>& tokens,
                               const std::vector<TokenId>& wanted, auto done) {
            self->ask(
                next_token_request(fmt::format("{}/{}.{}", self->body_.rid, i, (*num_asked)++),
                                   self->prompt_, tokens, wanted),
                std::move(done));
          },
          [self, i](Result<ExactProbability> found) { self->take(i, std::move(found)); });
    }
  }

 private:
  void ask(GenerateRequest request, std::function<void(Result<std::vector<float>>)> done) {
    if (gone_) return done(fail(error(StatusCode::kAborted, "the client is gone")));
    request.extra_key = cache_namespace(body_.extra_key, {});
    if (tenant_ != nullptr) {
      request.tenant = tenant_->name();
      request.tenant_weight = tenant_->weight();
      request.extra_key = cache_namespace(tenant_->name(), request.extra_key);
    }
    auto logprobs = std::make_shared<std::vector<float>>();
    const auto submitted = context_->engine.submit(
        std::move(request), [self = shared_from_this(), logprobs, done](TokenEvent&& event) {
          take_next_token(event, *logprobs);
          if (!event.finish) return;
          if (event.finish->status.ok()) {
            done(std::move(*logprobs));
          } else {
            done(fail(event.finish->status));
          }
        });
    if (!submitted) done(fail(submitted.error()));
  }

  void take(size_t choice, Result<ExactProbability> found) {
    {
      std::lock_guard lock(mutex_);
      if (found) {
        found_[choice] = *found;
      } else if (failed_.ok()) {
        failed_ = std::move(found).error();
      }
      if (--num_open_ > 0) return;
    }
    settle();
    response_->post([self = shared_from_this()] {
      HttpResponse response = self->failed_.ok() ? HttpResponse::json(200, self->answer())
                                                 : error_response(Dialect::kNative, self->failed_);
      if (self->tenant_ != nullptr) add_rate_limits(*self->tenant_, response);
      self->response_->send(std::move(response));
    });
  }

  // Each forward computes one token behind the prompt, which is computed once.
  void settle() {
    if (!reservation_) return;
    int64_t used = std::ssize(prompt_);
    for (const ExactProbability& found : found_) used += found.num_forwards;
    reservation_->use(used);
    reservation_.reset();
  }

  std::string answer() const {
    std::string out;
    JsonWriter w(out);
    w.begin_object().member("id", body_.rid).member("prompt_tokens", prompt_.size());
    w.key("choices").begin_array();
    for (size_t i = 0; i < found_.size(); ++i) {
      w.begin_object().member("text", body_.choices[i]).member("logprob", found_[i].logprob);
      w.member("left_out_max", found_[i].left_out_max);
      w.member("num_spellings", found_[i].num_spellings);
      w.member("num_forwards", found_[i].num_forwards).end_object();
    }
    w.end_array().end_object();
    return out;
  }

  const ContextPtr context_;
  const ResponsePtr response_;
  const ExactBody body_;
  const std::vector<TokenId> prompt_;
  const TenantPtr tenant_;                       // null: there are no limits
  std::optional<TokenReservation> reservation_;  // of its tokens
  std::atomic<bool> gone_{false};
  std::mutex mutex_;  // of what follows, until the last search has ended
  std::vector<ExactProbability> found_;
  size_t num_open_;
  Status failed_;
};

HttpResponse limited_response(Tenant& tenant, Duration wait) {
  HttpResponse response = rate_limited_response(
      Dialect::kNative,
      error(StatusCode::kResourceExhausted,
            "the limits of this key are reached: try again in {:.1f} s", to_seconds(wait)),
      std::chrono::ceil<std::chrono::seconds>(wait).count());
  add_rate_limits(tenant, response);
  return response;
}

Status start_exact(const ContextPtr& context, const ResponsePtr& response, ExactBody body,
                   const TenantPtr& tenant) {
  const Tokenizer* const tokenizer = context->engine.tokenizer();
  if (tokenizer == nullptr)
    return error(StatusCode::kFailedPrecondition,
                 "the spellings of a text need a tokenizer, and this server runs without");
  std::vector<TokenId> prompt =
      body.input_ids.empty() ? tokenizer->encode(body.text) : body.input_ids;
  if (body.rid.empty()) body.rid = context->make_rid();
  const auto call =
      std::make_shared<ExactCall>(context, response, std::move(body), std::move(prompt), tenant);
  if (const auto wait = call->admit()) {
    tenant->count_refusal();
    response->send(limited_response(*tenant, *wait));
  } else {
    call->begin();
  }
  return {};
}

void handle_exact_likelihood(const ContextPtr& context, HttpRequest&& request,
                             ResponsePtr response) {
  const TenantPtr tenant = tenant_of(context->tenants.get(), request);
  auto value = parse_json(request.body);
  if (!value) return response->send(malformed_response(value.error()));
  auto body = std::make_shared<ExactBody>();  // the task is copyable
  Status read = read_fields(exact_fields(), *value, "", *body);
  if (read.ok()) read = check(*body);
  if (!read.ok()) return response->send(malformed_response(read));
  // The first call makes the table of spellings: never on an I/O thread.
  const bool queued = context->threads->workers.run([context, response, body, tenant] {
    const Status started = start_exact(context, response, std::move(*body), tenant);
    if (!started.ok()) response->send(error_response(Dialect::kNative, started));
  });
  if (!queued)
    response->send(error_response(Dialect::kNative, error(StatusCode::kResourceExhausted,
                                                          "the server is busy; try again later")));
}

std::string exact_likelihood_schema() { return schema_of(exact_fields()); }

}  // namespace

const std::vector<Route>& exact_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"POST"},
       "/exact_likelihood",
       kUser,
       "The probability of choices after a prompt, over all their spellings",
       handle_exact_likelihood,
       "ExactLikelihood",
       exact_likelihood_schema},
  };
  return table;
}

}  // namespace espalier::server
