// Batches of a nnue::data::Loader on a device, for LibTorch.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nnue/data.h"
#include "nnue/operators.h"

namespace nnue {

// The loader writes records into memory of torch, page-locked for CUDA. A copy of them is queued and then expanded on
// the device, so the memory of a batch is released when its copy is done. For one thread.
class Batches {
  public:
    // `from` without a feature set and without memory: the batches are expanded into index rows of `feature_set`.
    Batches(data::LoaderOptions from, const std::string& feature_set, at::Device device)
        : device_(device), feature_set_(feature_set_handle(feature_set)) {
        const auto size = static_cast<int64_t>(from.batch_size);
        for (int i = 0; i < kBuffers; ++i) {
            memory_.push_back(at::empty({size, 32}, at::dtype(at::kByte).pinned_memory(device.is_cuda())));
            from.memory.emplace_back(static_cast<std::byte*>(memory_.back().data_ptr()), memory_.back().nbytes());
        }
        loader_.emplace(std::move(from));
    }

    // Nothing at the end of an epoch, unless the stream is `endless`.
    std::optional<Expanded> next(bool endless) {
        while (held_.size() >= kHeld) {
            if (held_.front().copied) held_.front().copied->synchronize();
            held_.pop_front();
        }
        auto batch = endless ? std::optional(loader_->next_endless()) : loader_->next();
        if (!batch) return std::nullopt;
        const auto records = batch->records();
        at::Tensor here = at::from_blob(const_cast<data::Record*>(records.data()),
                                        {static_cast<int64_t>(records.size()), 32}, at::kByte);
        Held held{std::move(*batch), {}};
        if (device_.is_cuda()) {
            here = here.to(device_, /*non_blocking=*/true);
            held.copied.emplace(device_.type());
            held.copied->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
        }
        held_.push_back(std::move(held));
        return expand_features(here, feature_set_, /*check_records=*/false);
    }

  private:
    static constexpr int kBuffers = 12, kHeld = 3;
    struct Held {
        data::Loader::Batch batch;
        std::optional<c10::Event> copied;
    };
    at::Device device_;
    int64_t feature_set_;
    std::vector<at::Tensor> memory_;
    std::optional<data::Loader> loader_;
    std::deque<Held> held_;
};

// Work beside that of the current stream, such as the next batch beside the step of this one. On a CPU it is done at
// once. For one thread and one current stream.
class Beside {
  public:
    explicit Beside(at::Device device) : device_(device) {
        if (device.is_cuda()) own_ = of_device().getStreamFromGlobalPool(device, /*isHighPriority=*/true);
    }

    // Calls `work`, which may launch kernels on a stream of its own: they wait for all that is queued on the current
    // stream, and run beside what is queued later. Tensors that it makes may be read after the next `join`, and freed
    // at any time.
    template <class Work>
    auto start(const Work& work) {
        if (!own_) return work();
        wait(*own_, current());
        const c10::StreamGuard guard(*own_);
        return work();
    }

    // The current stream waits for the work.
    void join() {
        if (own_) wait(current(), *own_);
    }

  private:
    c10::impl::VirtualGuardImpl of_device() const { return c10::impl::VirtualGuardImpl(device_.type()); }
    c10::Stream current() const { return of_device().getStream(device_); }
    static void wait(const c10::Stream& later, const c10::Stream& earlier) {
        c10::Event done(earlier.device_type());
        done.record(earlier);
        done.block(later);
    }

    at::Device device_;
    std::optional<c10::Stream> own_;
};

}  // namespace nnue
