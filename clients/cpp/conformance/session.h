// One session at a worker: three calls, whose answers are collected as they come.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "antiphon/v1/inference_service.grpc.pb.h"

namespace pb = antiphon::v1;

constexpr std::chrono::seconds kPatience{30};

// A check that failed, with the sentence that says so.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One call: a thread collects its answers and, at the end, its status.
template <typename Request, typename Response>
class Stream {
 public:
  using Call = grpc::ClientReaderWriter<Request, Response>;

  Stream(std::unique_ptr<Call> call, std::mutex& mutex, std::condition_variable& news)
      : call_(std::move(call)), mutex_(mutex), news_(news), reader_([this] { read(); }) {}

  ~Stream() { reader_.join(); }

  void write(const Request& request) { call_->Write(request); }

  void half_close() { call_->WritesDone(); }

  // Waits until `is_enough` of all answers so far.
  std::vector<Response> until(const std::function<bool(const std::vector<Response>&)>& is_enough,
                              const std::string& what) {
    std::unique_lock lock(mutex_);
    const bool came = news_.wait_for(lock, kPatience, [&] { return is_enough(all_) || is_over_; });
    if (!came || !is_enough(all_)) throw Failure("waited in vain for " + what);
    return all_;
  }

  // Waits for the end.
  grpc::Status ended() {
    std::unique_lock lock(mutex_);
    if (!news_.wait_for(lock, kPatience, [&] { return is_over_; })) throw Failure("the call does not end");
    return status_;
  }

  std::vector<Response> all() {
    std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  void read() {
    for (Response answer; call_->Read(&answer);) {
      std::lock_guard lock(mutex_);
      all_.push_back(answer);
      news_.notify_all();
    }
    const grpc::Status status = call_->Finish();
    std::lock_guard lock(mutex_);
    status_ = status;
    is_over_ = true;
    news_.notify_all();
  }

  std::unique_ptr<Call> call_;
  std::mutex& mutex_;
  std::condition_variable& news_;
  std::vector<Response> all_;
  grpc::Status status_;
  bool is_over_ = false;
  std::thread reader_;  // the last member: it begins when the others are there
};

class Session {
 public:
  explicit Session(pb::InferenceService::Stub& stub) {
    std::random_device random;
    char id[33];
    std::snprintf(id, sizeof id, "%08x%08x%08x%08x", random(), random(), random(), random());
    for (auto& context : contexts) {
      context.AddMetadata("antiphon-session-id", id);
      context.set_deadline(std::chrono::system_clock::now() + 2 * kPatience);
    }
    prefill = std::make_unique<Stream<pb::PrefillRequest, pb::PrefillResponse>>(stub.Prefill(&contexts[0]), mutex_, news_);
    generate = std::make_unique<Stream<pb::GenerateRequest, pb::GenerateResponse>>(stub.Generate(&contexts[1]), mutex_, news_);
    finalize = std::make_unique<Stream<pb::FinalizeRequest, pb::FinalizeResponse>>(stub.Finalize(&contexts[2]), mutex_, news_);
  }

  ~Session() {
    for (auto& context : contexts) context.TryCancel();
  }

  // Writes the config and waits for SessionReady.
  void configure() {
    pb::PrefillRequest request;
    request.mutable_config()->set_mode(pb::SESSION_MODE_AUDIO);
    request.mutable_config()->set_seed(7);
    request.mutable_config()->mutable_duplex()->set_force_listen_count(0);
    prefill->write(request);
    prefill->until([](const auto& all) { return all.size() == 1; }, "SessionReady");
  }

  // Writes a unit of silence, or of these bytes, on all three calls.
  void run(uint64_t number, const std::string& audio = std::string(64000, '\0')) {
    pb::PrefillRequest input;
    input.set_unit(number);
    auto* chunk = input.mutable_duplex()->mutable_audio();
    chunk->set_encoding(pb::AUDIO_ENCODING_PCM_F32LE);
    chunk->set_sample_rate_hz(16000);
    chunk->set_data(audio);
    prefill->write(input);
    pb::GenerateRequest say;
    say.set_unit(number);
    say.mutable_run();
    generate->write(say);
    pb::FinalizeRequest close;
    close.set_unit(number);
    finalize->write(close);
  }

  void half_close() { prefill->half_close(), generate->half_close(), finalize->half_close(); }

  // Waits for the end of all three calls.
  std::vector<grpc::Status> ended() { return {prefill->ended(), generate->ended(), finalize->ended()}; }

  grpc::ClientContext contexts[3];

 private:
  std::mutex mutex_;
  std::condition_variable news_;

 public:
  std::unique_ptr<Stream<pb::PrefillRequest, pb::PrefillResponse>> prefill;
  std::unique_ptr<Stream<pb::GenerateRequest, pb::GenerateResponse>> generate;
  std::unique_ptr<Stream<pb::FinalizeRequest, pb::FinalizeResponse>> finalize;
};
