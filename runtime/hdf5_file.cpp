#include "runtime/hdf5_file.h"

#include <hdf5.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

#include "runtime/files.h"
#include "runtime/hdf5_access.h"
#include "runtime/memory.h"

namespace baton {
namespace {

using Dims = std::array<hsize_t, Shape::kMaxRank>;

/// bfloat16 as a 2-byte float: sign 1, exponent 8 (bias 127), mantissa 7.
hid_t make_bfloat16() {
  const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
  const bool good = H5Tset_fields(type, 15, 7, 8, 0, 7) >= 0 && H5Tset_precision(type, 16) >= 0 &&
                    H5Tset_size(type, 2) >= 0 && H5Tset_ebias(type, 127) >= 0;
  CHECK(good, "HDF5 cannot describe bfloat16: {}", library_error());
  return type;
}

/// The type in memory; in files the same, so that nothing is converted when written.
hid_t type_of(DType dtype) {
  static const hid_t bfloat16 = make_bfloat16();
  switch (dtype) {
    case DType::kFloat32:
      return H5T_NATIVE_FLOAT;
    case DType::kFloat64:
      return H5T_NATIVE_DOUBLE;
    case DType::kBFloat16:
      return bfloat16;
    case DType::kInt32:
      return H5T_NATIVE_INT32;
    case DType::kInt64:
      return H5T_NATIVE_INT64;
    case DType::kUInt8:
      return H5T_NATIVE_UINT8;
  }
  return -1;
}

Dims dims_of(const Shape& shape) {
  Dims dims{};
  for (int i = 0; i < shape.rank(); ++i) dims[i] = static_cast<hsize_t>(shape[i]);
  return dims;
}

Shape shape_of(const Dims& dims, int rank) {
  const std::vector<int64_t> sizes(dims.begin(), dims.begin() + rank);
  return Shape(sizes);
}

Handle make_space(const Shape& shape) {
  CHECK(shape.rank() > 0, "a tensor without dimensions cannot be stored");
  return Handle(H5Screate_simple(shape.rank(), dims_of(shape).data(), nullptr));
}

/// Creation properties: no time stamps, so that equal contents are equal bytes; `filled` sets what unwritten data read
/// as.
Handle dataset_properties(DType dtype, bool filled) {
  Handle properties(H5Pcreate(H5P_DATASET_CREATE));
  bool good = H5Pset_obj_track_times(properties, false) >= 0;
  if (filled && (dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kBFloat16)) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    good = good && H5Pset_fill_value(properties, H5T_NATIVE_DOUBLE, &nan) >= 0;
  } else if (filled) {
    const int64_t missing = dtype == DType::kUInt8 ? 255 : -1;
    good = good && H5Pset_fill_value(properties, H5T_NATIVE_INT64, &missing) >= 0;
  }
  CHECK(good, "HDF5 cannot prepare a dataset: {}", library_error());
  return properties;
}

/// Files that HDF5 1.10 reads whatever version wrote them, and no locks.
Handle access_properties() {
  Handle properties(H5Pcreate(H5P_FILE_ACCESS));
  bool good = H5Pset_libver_bounds(properties, H5F_LIBVER_EARLIEST, H5F_LIBVER_V110) >= 0;
#if H5_VERSION_GE(1, 10, 7)
  good = good && H5Pset_file_locking(properties, false, true) >= 0;
#endif
  CHECK(good, "HDF5 cannot prepare a file: {}", library_error());
  return properties;
}

}  // namespace

Hdf5File::Hdf5File(const std::string& path, Mode mode) : path_(path), mode_(mode) {
  const auto lock = lock_library();
  const Handle access = access_properties();
  if (mode == Mode::kCreate) {
    file_ = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
    CHECK(file_ >= 0, "{} cannot be created: {}", path, library_error());
    return;
  }
  CHECK_INPUT(::access(path.c_str(), R_OK) == 0, "{} cannot be read: {}", path, std::strerror(errno));
  CHECK_INPUT(H5Fis_hdf5(path.c_str()) > 0, "{} is not an HDF5 file", path);
  file_ = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access);
  CHECK_INPUT(file_ >= 0, "{} cannot be opened: {}", path, library_error());
}

Hdf5File::~Hdf5File() {
  if (file_ < 0) return;
  const auto lock = lock_library();
  H5Fclose(file_);
}

Hdf5File::Hdf5File(Hdf5File&& other) noexcept
    : path_(std::move(other.path_)), mode_(other.mode_), file_(std::exchange(other.file_, -1)) {}

Hdf5File& Hdf5File::operator=(Hdf5File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(mode_, other.mode_);
  std::swap(file_, other.file_);
  return *this;
}

void Hdf5File::close() {
  const Access h5{*this};
  const hid_t file = std::exchange(file_, -1);
  if (file < 0) return;
  h5(H5Fclose(file), "close", "it");
  if (mode_ == Mode::kCreate) flush_to_disk(path_);
}

bool Hdf5File::exists(const std::string& name) const {
  const Access h5{*this};
  const std::string full = with_slash(name);
  // HDF5 asks for every step of a path on its own: an absent group on the way is an error to it, not a "no".
  for (size_t end = full.find('/', 1);; end = full.find('/', end + 1)) {
    const std::string step = full.substr(0, end);
    if (step != "/" && h5(H5Lexists(file_, step.c_str(), H5P_DEFAULT), "look up", step) == 0) return false;
    if (end == std::string::npos) return true;
  }
}

bool Hdf5File::is_group(const std::string& name) const {
  const Access h5{*this};
  if (!exists(name)) return false;
  const Handle object(h5(H5Oopen(file_, name.c_str(), H5P_DEFAULT), "open", name));
  return H5Iget_type(object) == H5I_GROUP;
}

std::vector<std::string> Hdf5File::list(const std::string& group) const {
  const Access h5{*this};
  CHECK_CODE(h5.code, is_group(group), "{} has no group {}", path_, with_slash(group));
  std::vector<std::string> names;
  auto add = [](hid_t, const char* name, const H5L_info_t*, void* data) -> herr_t {
    static_cast<std::vector<std::string>*>(data)->emplace_back(name);
    return 0;
  };
  const Handle handle(h5(H5Gopen2(file_, group.c_str(), H5P_DEFAULT), "open group", group));
  h5(H5Literate(handle, H5_INDEX_NAME, H5_ITER_INC, nullptr, add, &names), "list", group);
  return names;
}

Shape Hdf5File::shape(const std::string& name) const {
  const Access h5{*this};
  const Handle dataset = h5.dataset(name);
  const Handle space(h5(H5Dget_space(dataset), "read the shape of", name));
  const int rank = h5(H5Sget_simple_extent_ndims(space), "read the shape of", name);
  CHECK_CODE(h5.code, rank <= Shape::kMaxRank, "{}: dataset {} has {} dimensions, more than {}", path_, name, rank,
             Shape::kMaxRank);
  if (rank == 0) return Shape{1};
  Dims dims{};
  h5(H5Sget_simple_extent_dims(space, dims.data(), nullptr), "read the shape of", name);
  return shape_of(dims, rank);
}

void Hdf5File::read(const std::string& name, const Tensor& x) const {
  const Access h5{*this};
  const Shape stored = shape(name);
  CHECK_CODE(h5.code, stored == x.shape, "{}: dataset {} has shape {}, expected {}", path_, name, stored.str(),
             x.shape.str());
  const HostView view(x);
  const Handle dataset = h5.dataset(name);
  const Handle type(h5(H5Dget_type(dataset), "read the type of", name));
  const H5T_class_t found = H5Tget_class(type);
  CHECK_CODE(h5.code, found == H5T_INTEGER || found == H5T_FLOAT, "{}: dataset {} does not hold numbers", path_, name);
  if (x.numel() == 0) return;
  h5(H5Dread(dataset, type_of(x.dtype), H5S_ALL, H5S_ALL, H5P_DEFAULT, view.host().data), "read dataset", name);
  view.upload();
}

void Hdf5File::write(const std::string& name, const Tensor& x) {
  const Access h5{*this};
  const HostView view(x);
  view.download();
  const Handle space = make_space(x.shape);
  const Handle dataset(h5(H5Dcreate2(file_, name.c_str(), type_of(x.dtype), space, link_properties(),
                                     dataset_properties(x.dtype, false), H5P_DEFAULT),
                          "create dataset", name));
  if (x.numel() == 0) return;
  h5(H5Dwrite(dataset, type_of(x.dtype), H5S_ALL, H5S_ALL, H5P_DEFAULT, view.host().data), "write dataset", name);
}

void Hdf5File::create(const std::string& name, const Shape& shape, DType dtype) {
  const Access h5{*this};
  const Handle dataset(h5(H5Dcreate2(file_, name.c_str(), type_of(dtype), make_space(shape), link_properties(),
                                     dataset_properties(dtype, true), H5P_DEFAULT),
                          "create dataset", name));
}

void Hdf5File::write_block(const std::string& name, const Shape& start, const Tensor& x) {
  const Access h5{*this};
  const Shape whole = shape(name);
  bool inside = start.rank() == whole.rank() && x.shape.rank() == whole.rank();
  for (int i = 0; inside && i < whole.rank(); ++i) inside = start[i] <= whole[i] && x.dim(i) <= whole[i] - start[i];
  CHECK(inside, "{}: a block of shape {} at {} is outside dataset {} of shape {}", path_, x.shape.str(), start.str(),
        name, whole.str());
  const HostView view(x);
  view.download();
  if (x.numel() == 0) return;
  const Handle dataset = h5.dataset(name);
  const Handle space = make_space(whole);
  h5(H5Sselect_hyperslab(space, H5S_SELECT_SET, dims_of(start).data(), nullptr, dims_of(x.shape).data(), nullptr),
     "select", name);
  h5(H5Dwrite(dataset, type_of(x.dtype), make_space(x.shape), space, H5P_DEFAULT, view.host().data), "write dataset",
     name);
}

void Hdf5File::write_virtual(const std::string& name, const Shape& shape, DType dtype, const std::vector<Part>& parts) {
  const Access h5{*this};
  const Handle space = make_space(shape);
  const Handle properties = dataset_properties(dtype, true);
  for (const Part& part : parts) {
    CHECK(part.first_row >= 0 && part.num_rows >= 0 && part.first_row + part.num_rows <= shape[0],
          "rows [{}, {}) of {} are outside dataset {} of shape {}", part.first_row, part.first_row + part.num_rows,
          part.file, name, shape.str());
    const Shape rows = shape.with_rows(part.num_rows);
    if (rows.numel() == 0) continue;
    const Handle source = make_space(rows);
    const Dims start{static_cast<hsize_t>(part.first_row)};
    h5(H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, dims_of(rows).data(), nullptr), "select",
       name);
    h5(H5Pset_virtual(properties, space, part.file.c_str(), with_slash(name).c_str(), source), "map dataset", name);
  }
  h5(H5Sselect_all(space), "select", name);
  const Handle dataset(
      h5(H5Dcreate2(file_, name.c_str(), type_of(dtype), space, link_properties(), properties, H5P_DEFAULT),
         "create dataset", name));
}

}  // namespace baton
