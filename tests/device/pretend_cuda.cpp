// A pretend CUDA device for a torch that is built without CUDA.
//
// Tensors on `cuda:0` live in memory of their own accounting and every operation runs the CPU's kernel, so results are
// the CPU's. What a real device refuses is refused: operands on two devices, a CPU generator, use after a fork. What a
// real device makes the host wait for is counted: a copy to the host, a blocking copy to the device, `item`,
// operations whose result has a size that depends on data, `synchronize`. A copy into pinned host memory that does not
// block arrives with the next wait, as late as a real one may.
//
// Not imitated: the device's own rounding and random numbers, streams other than the default one, graphs, NCCL,
// recurrent layers (their CUDA kernels have no counterpart on the CPU).
// Loaded by `sitecustomize` before torch, which asks for a device's hooks while it is imported; driven by
// `pretend_cuda.py` through the plain C functions at the end.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense_ops.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/csrc/Generator.h>
#include <torch/library.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>

namespace {
using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;

constexpr int num_devices = 1;
pid_t owner = 0;              // the process that used the device first; 0 before
thread_local DeviceIndex current = 0;
thread_local bool inside = false;  // a kernel is running: what it does is not the caller's doing

// ---------------------------------------------------------------------------------------------------------- counting

// The autograd engine has a thread for the device, and a DataLoader one that pins.
std::mutex counting, copying, pinning;
std::map<std::string, int64_t> counts;

void count(const std::string& what) {
  if (inside) return;
  std::lock_guard<std::mutex> lock(counting);
  counts[what]++;
}

struct Pending {  // a copy to pinned memory that has not arrived yet
  Tensor target, content;
};
std::vector<Pending> pending;

void arrive() {
  std::lock_guard<std::mutex> lock(copying);
  for (auto& copy : pending) std::memcpy(copy.target.mutable_data_ptr(), copy.content.data_ptr(), copy.content.nbytes());
  pending.clear();
}

void wait(const std::string& why) {
  arrive();
  if (inside) return;
  count("waits");
  count("wait:" + why);
}

void use() {
  if (owner == 0) owner = getpid();
  TORCH_CHECK(owner == getpid(), "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, ",
              "you must use the 'spawn' start method (pretend)");
}

// ------------------------------------------------------------------------------------------------------------ memory

int64_t allocated = 0, most_allocated = 0;

struct DeviceAllocator final : c10::Allocator {
  struct Block {
    void* data;
    size_t size;
  };
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    allocated -= block->size;
    if (block->data) c10::free_cpu(block->data);
    delete block;
  }
  c10::DataPtr allocate(size_t size) override {
    use();
    void* data = size ? c10::alloc_cpu(size) : nullptr;
    allocated += size;
    most_allocated = std::max(most_allocated, allocated);
    return {data, new Block{data, size}, &release, Device(DeviceType::CUDA, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t size) const override { std::memcpy(to, from, size); }
};
DeviceAllocator device_memory;

std::map<uintptr_t, size_t> pinned;  // blocks of pinned host memory: where they begin, how long they are

struct PinnedAllocator final : c10::Allocator {
  static void release(void* data) {
    arrive();  // torch keeps a block until the copies into it are done
    std::lock_guard<std::mutex> lock(pinning);
    pinned.erase(reinterpret_cast<uintptr_t>(data));
    c10::free_cpu(data);
  }
  c10::DataPtr allocate(size_t size) override {
    use();
    void* data = c10::alloc_cpu(std::max<size_t>(size, 1));
    std::lock_guard<std::mutex> lock(pinning);
    pinned[reinterpret_cast<uintptr_t>(data)] = size;
    return {data, data, &release, Device(DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t size) const override { std::memcpy(to, from, size); }
};
PinnedAllocator pinned_memory;

bool is_pinned(const void* data) {
  auto where = reinterpret_cast<uintptr_t>(data);
  std::lock_guard<std::mutex> lock(pinning);
  auto after = pinned.upper_bound(where);
  if (after == pinned.begin()) return false;
  auto block = std::prev(after);
  return where < block->first + std::max<size_t>(block->second, 1);
}

// ------------------------------------------------------------------------------------------------- guards, generators

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr DeviceType static_type = DeviceType::CUDA;
  Guard() = default;
  explicit Guard(DeviceType) {}
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device device) const override {
    Device before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return Device(DeviceType::CUDA, current); }
  void setDevice(Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) current = device.index();
  }
  c10::Stream getStream(Device device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return getStream(stream.device()); }
  DeviceIndex deviceCount() const noexcept override { return num_devices; }
  void record(void**, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  void synchronizeStream(const c10::Stream&) const override { wait("synchronize"); }
  void synchronizeEvent(void*) const override { wait("synchronize"); }
  void synchronizeDevice(const DeviceIndex) const override { wait("synchronize"); }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

struct DeviceGenerator final : c10::GeneratorImpl {
  at::Generator inner;  // draws
  explicit DeviceGenerator(DeviceIndex index)
      : c10::GeneratorImpl(Device(DeviceType::CUDA, index), c10::DispatchKeySet(c10::DispatchKey::CUDA)),
        inner(at::detail::createCPUGenerator()) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  DeviceGenerator* clone_impl() const override {
    auto* copy = new DeviceGenerator(device().index());
    copy->inner = inner.clone();
    return copy;
  }
};

std::vector<at::Generator>& generators() {
  static std::vector<at::Generator> all = [] {
    std::vector<at::Generator> made;
    for (int i = 0; i < num_devices; i++) made.push_back(at::make_generator<DeviceGenerator>(i));
    return made;
  }();
  return all;
}

// Torch finds the hooks under this name.
struct CUDAHooks : at::CUDAHooksInterface {
  CUDAHooks() = default;
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return num_devices > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return owner != 0; }
  int getNumGPUs() const override { return num_devices; }
  DeviceIndex deviceCount() const override { return num_devices; }
  DeviceIndex current_device() const override { return current; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex index) const override { current = index; }
  DeviceIndex exchangeDevice(DeviceIndex index) const override { return std::exchange(current, index); }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return exchangeDevice(index); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  Device getDeviceFromPtr(void*) const override { return Device(DeviceType::CUDA, current); }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return generators()[index < 0 ? current : index];
  }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<DeviceGenerator>(index < 0 ? current : index);
  }
  void deviceSynchronize(DeviceIndex) const override { wait("synchronize"); }
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks);

// ------------------------------------------------------------------------------- any operation: check, count, compute

using Stack = torch::jit::Stack;

void for_each_tensor(const c10::IValue& value, const std::function<void(const Tensor&)>& call) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) call(value.toTensor());
  } else if (value.isTensorList()) {
    for (const Tensor& tensor : value.toTensorList())
      if (tensor.defined()) call(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorList())
      if (tensor && tensor->defined()) call(*tensor);
  }
}

// The sizes of their results depend on data, or their result is a value of the host.
const std::set<std::string> WAITS = {
    "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
    "aten::equal", "aten::repeat_interleave", "aten::bincount", "aten::histc", "aten::linalg_eigh",
    "aten::_linalg_eigh"};
// Elementwise operations take a CPU tensor without dimensions beside those of the device; these do not.
const std::set<std::string> STRICT = {
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::dot", "aten::cat", "aten::stack",
    "aten::convolution", "aten::convolution_backward", "aten::nll_loss_forward", "aten::nll_loss_backward",
    "aten::index_select", "aten::index_add", "aten::gather", "aten::scatter", "aten::scatter_add", "aten::embedding",
    "aten::native_layer_norm", "aten::_native_batch_norm_legit", "aten::_amp_update_scale_",
    "aten::_amp_foreach_non_finite_check_and_unscale_"};
const std::set<std::string> INDEXED = {
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index",
    "aten::_unsafe_index_put"};

bool may_be_on_the_cpu(const std::string& name, const c10::Argument& argument, const Tensor& tensor) {
  if (INDEXED.count(name) && argument.name() == "indices") return true;
  bool is_written = argument.alias_info() && argument.alias_info()->isWrite();
  bool is_fused = name.rfind("aten::_fused_", 0) == 0 && argument.name() != "lr";
  return tensor.dim() == 0 && !is_written && !is_fused && !STRICT.count(name);
}

// The device of an operation; all its tensors must be there.
Device check_devices(const c10::FunctionSchema& schema, const c10::IValue* arguments) {
  const auto& name = schema.name();
  std::optional<Device> where;
  for (size_t i = 0; i < schema.arguments().size(); i++)
    for_each_tensor(arguments[i], [&](const Tensor& tensor) {
      if (!tensor.device().is_cuda()) return;
      TORCH_CHECK(!where || *where == tensor.device(), "Expected all tensors to be on the same device, but found at ",
                  "least two devices, ", *where, " and ", tensor.device(), "! (pretend, ", name, ")");
      where = tensor.device();
    });
  if (!where) return Device(DeviceType::CUDA, current);  // it makes a tensor
  for (size_t i = 0; i < schema.arguments().size(); i++)
    for_each_tensor(arguments[i], [&](const Tensor& tensor) {
      TORCH_CHECK(tensor.device().is_cuda() || may_be_on_the_cpu(name, schema.arguments()[i], tensor),
                  "Expected all tensors to be on the same device, but found at least two devices, ", *where, " and ",
                  tensor.device(), "! (when checking argument ", schema.arguments()[i].name(), " in method pretend ",
                  name, ")");
    });
  if (INDEXED.count(name))
    TORCH_CHECK(arguments[0].toTensor().device().is_cuda(), "indices should be either on cpu or on the same device as ",
                "the indexed tensor (cpu) (pretend)");
  return *where;
}

void count_waits(const c10::FunctionSchema& schema, const c10::IValue* arguments) {
  if (WAITS.count(schema.name())) wait(schema.name());
  if (schema.name() != "aten::_index_put_impl_") return;  // to read by indices, torch converts them by operations
  for_each_tensor(arguments[1], [&](const Tensor& index) {
    if (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte) wait(schema.name() + " by a mask");
    if (index.device().is_cpu()) {
      count("to_device");
      wait(schema.name() + " by indices of the host");
    }
  });
}

// Puts the CPU's generator of a device's in its place; whether there was one.
bool replace_generators(const c10::FunctionSchema& schema, c10::IValue* arguments) {
  bool found = false;
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    if (!arguments[i].isGenerator()) continue;
    auto generator = arguments[i].toGenerator();
    TORCH_CHECK(generator.device().is_cuda(), "Expected a 'cuda' device type for generator but found '",
                generator.device().type(), "' (pretend, ", schema.name(), ")");
    arguments[i] = c10::IValue(static_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl())->inner);
    found = true;
  }
  return found;
}

struct Inside {  // while a kernel runs
  bool before = std::exchange(inside, true);
  ~Inside() { inside = before; }
};

struct DrawsFromDevice {  // while a kernel draws from the default generator
  at::Generator cpu = at::detail::getDefaultCPUGenerator();
  at::Generator& device;
  Tensor before = cpu.get_state();
  explicit DrawsFromDevice(DeviceIndex index) : device(generators()[index]) { cpu.set_state(device.get_state()); }
  ~DrawsFromDevice() {
    device.set_state(cpu.get_state());
    cpu.set_state(before);
  }
};

void run_on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  use();
  const auto& schema = op.schema();
  c10::IValue* arguments = stack->data() + (stack->size() - schema.arguments().size());
  Device where = check_devices(schema, arguments);
  count("kernels");
  count_waits(schema, arguments);
  bool has_generator = replace_generators(schema, arguments);
  bool draws = op.hasTag(at::Tag::nondeterministic_seeded) && !has_generator;
  Inside kernel;
  std::optional<DrawsFromDevice> drawing;
  if (draws) drawing.emplace(where.index());
  at::native::cpu_fallback(op, stack);
}

// ------------------------------------------------------------------------------------------- copies, values, new ones

// The same memory as a tensor of the CPU.
Tensor on_cpu(const Tensor& tensor) {
  if (!tensor.device().is_cuda()) return tensor;
  auto* data = static_cast<char*>(const_cast<void*>(tensor.storage().data_ptr().get()));
  auto options = at::TensorOptions().dtype(tensor.dtype());
  Tensor alias = at::from_blob(data + tensor.storage_offset() * tensor.itemsize(), tensor.sizes(), tensor.strides(), options);
  return tensor.is_conj() ? alias.conj() : alias;
}

std::optional<Tensor> on_cpu(const std::optional<Tensor>& tensor) {
  if (!tensor || !tensor->defined()) return std::nullopt;
  TORCH_CHECK(tensor->device().is_cuda(), "Expected all tensors to be on the same device (pretend)");
  return on_cpu(*tensor);
}

Tensor to_device(const Tensor& tensor, Device device) { return tensor.to(device); }

Tensor& copy_(Tensor& self, const Tensor& from, bool non_blocking) {
  use();
  bool to_device = self.device().is_cuda() && !from.device().is_cuda();
  bool to_host = !self.device().is_cuda() && from.device().is_cuda();
  count(to_device ? "to_device" : to_host ? "to_host" : "kernels");
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard plain(c10::autograd_dispatch_keyset);
  Tensor source = on_cpu(from);
  bool is_late = to_host && non_blocking && !inside && self.is_contiguous() && is_pinned(self.data_ptr());
  if (is_late) {
    Tensor content = source.to(self.scalar_type(), false, true).expand(self.sizes()).contiguous();
    std::memset(self.mutable_data_ptr(), 0xff, self.nbytes());
    std::lock_guard<std::mutex> lock(copying);
    pending.push_back({self, content});
    return self;
  }
  if (to_host) wait("copy to the host");
  if (to_device && !non_blocking) wait("copy to the device");
  if (to_device) arrive();  // in the order of the stream
  Tensor target = on_cpu(self);
  target.copy_(source);
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& target, bool non_blocking) {
  Tensor written = target;
  return copy_(written, self, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& target) {
  if (target.sizes() != self.sizes()) target.resize_(self.sizes());
  return copy_from(self, target, false);
}

// Tensor by tensor if a list is on the host, else one kernel.
void foreach_copy_(at::TensorList self, at::TensorList from, bool non_blocking) {
  bool is_one_kernel = true;
  for (size_t i = 0; i < self.size(); i++)
    is_one_kernel = is_one_kernel && self[i].device().is_cuda() && from[i].device().is_cuda();
  if (is_one_kernel) count("kernels");
  std::optional<Inside> kernel;
  if (is_one_kernel) kernel.emplace();
  for (size_t i = 0; i < self.size(); i++) copy_from(from[i], self[i], non_blocking);
}

at::Scalar local_scalar(const Tensor& self) {
  use();
  wait("item");
  c10::impl::ExcludeDispatchKeyGuard plain(c10::autograd_dispatch_keyset);
  return at::_ops::_local_scalar_dense::call(on_cpu(self));
}

void choose(std::optional<Device> device) {
  use();
  if (!device || !device->has_index()) return;
  TORCH_CHECK(device->index() < num_devices, "CUDA error: invalid device ordinal (pretend)");
  current = device->index();
}

constexpr c10::DispatchKeySet DEVICE_KEYS(c10::DispatchKey::CUDA);

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  choose(device);
  return at::detail::empty_generic(size, &device_memory, DEVICE_KEYS, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  choose(device);
  return at::detail::empty_strided_generic(size, stride, &device_memory, DEVICE_KEYS, c10::dtype_or_default(dtype));
}

// ------------------------------------------------------------------------------------------- views and their storages

const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef symbolic, std::optional<at::MemoryFormat> format) {
  auto size = C10_AS_INTARRAYREF_SLOW(symbolic);
  int64_t bytes = self.itemsize();
  for (auto length : size) bytes *= length;
  bytes += self.storage_offset() * self.itemsize();
  const auto& storage = self.storage();
  if (static_cast<int64_t>(storage.nbytes()) < bytes) {
    auto larger = device_memory.allocate(bytes);
    if (storage.nbytes()) std::memcpy(larger.get(), storage.data_ptr().get(), storage.nbytes());
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(larger));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

Tensor view(const Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

Tensor as_strided(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                  std::optional<c10::SymInt> offset) {
  auto start = offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt;
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), start);
}

Tensor reshape_alias(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

Tensor unfold(const Tensor& self, int64_t dim, int64_t size, int64_t step) {
  return at::native::unfold(self, dim, size, step);
}

Tensor& set_storage(Tensor& self, at::Storage storage) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  self.unsafeGetTensorImpl()->set_storage_offset(0);
  self.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(storage.nbytes() / self.itemsize())});
  return self;
}

Tensor& set_storage_offset(Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef sizes,
                           c10::SymIntArrayRef strides) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  auto size = C10_AS_INTARRAYREF_SLOW(sizes);
  auto stride = C10_AS_INTARRAYREF_SLOW(strides);
  if (stride.size() == size.size()) {
    self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset.expect_int());
  } else {
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
    self.unsafeGetTensorImpl()->set_storage_offset(offset.expect_int());
  }
  return self;
}

Tensor& set_tensor(Tensor& self, const Tensor& from) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(from.storage());
  self.unsafeGetTensorImpl()->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
  return self;
}

// ------------------------------------------------------------------------- operations whose CPU kernel will not do

// Its schema does not say that it writes the running statistics, so a fallback would not bring them back.
std::tuple<Tensor, Tensor, Tensor> batch_norm(const Tensor& x, const std::optional<Tensor>& weight,
                                              const std::optional<Tensor>& bias, const std::optional<Tensor>& mean,
                                              const std::optional<Tensor>& var, bool training, double momentum,
                                              double eps) {
  use();
  count("kernels");
  Inside kernel;
  c10::impl::ExcludeDispatchKeyGuard plain(c10::autograd_dispatch_keyset);
  auto [y, saved_mean, saved_var] = at::_ops::native_batch_norm::call(
      on_cpu(x), on_cpu(weight), on_cpu(bias), on_cpu(mean), on_cpu(var), training, momentum, eps);
  return {to_device(y, x.device()), to_device(saved_mean, x.device()), to_device(saved_var, x.device())};
}

// A softmax of half precision may have a result of single precision on a GPU, not on a CPU.
template <class Op>
Tensor softmax(const Tensor& x, int64_t dim, bool half_to_float) {
  use();
  count("kernels");
  Inside kernel;
  c10::impl::ExcludeDispatchKeyGuard plain(c10::autograd_dispatch_keyset);
  Tensor input = half_to_float ? on_cpu(x).to(at::kFloat) : on_cpu(x);
  return to_device(Op::call(input, dim, false), x.device());
}

template <class Op>
Tensor softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, at::ScalarType dtype) {
  use();
  count("kernels");
  Inside kernel;
  c10::impl::ExcludeDispatchKeyGuard plain(c10::autograd_dispatch_keyset);
  Tensor result = Op::call(on_cpu(grad), on_cpu(output), dim, grad.scalar_type());
  return to_device(result.to(dtype), grad.device());
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize_);
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_foreach_copy_", &foreach_copy_);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("view", &view);
  m.impl("as_strided", &as_strided);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &unfold);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage_offset);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("native_batch_norm", &batch_norm);
  m.impl("_softmax", &softmax<at::_ops::_softmax>);
  m.impl("_log_softmax", &softmax<at::_ops::_log_softmax>);
  m.impl("_softmax_backward_data", &softmax_backward<at::_ops::_softmax_backward_data>);
  m.impl("_log_softmax_backward_data", &softmax_backward<at::_ops::_log_softmax_backward_data>);
  // Without these, torch looks for a library of convolutions that fits the device.
  for (auto* name : {"convolution", "convolution_backward"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

// ------------------------------------------------------------------------------------------- what Python calls

extern "C" {
void pretend_start() { c10::SetAllocator(DeviceType::CUDA, &device_memory, 255); }
void pretend_use() { use(); }
bool pretend_is_used() { return owner != 0; }
bool pretend_is_forked() { return owner != 0 && owner != getpid(); }
int pretend_current() { return current; }
void pretend_set_current(int index) { current = index; }
void pretend_synchronize() {
  use();
  wait("synchronize");
}
int64_t pretend_allocated() { return allocated; }
int64_t pretend_most_allocated() { return most_allocated; }
void pretend_reset_peak() { most_allocated = allocated; }
void pretend_reset() { counts.clear(); }
void pretend_counts(void (*call)(const char*, int64_t)) {
  std::lock_guard<std::mutex> lock(counting);
  for (const auto& [name, number] : counts) call(name.c_str(), number);
}
PyObject* pretend_generator(int index) { return THPGenerator_Wrap(generators()[index]); }
}
