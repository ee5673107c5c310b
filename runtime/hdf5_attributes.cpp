#include <algorithm>
#include <cstring>

#include "runtime/hdf5_access.h"

namespace baton {

bool Hdf5File::has_attribute(const std::string& object, const std::string& name) const {
  const Access h5{*this};
  return exists(object) &&
         h5(H5Aexists_by_name(file_, object.c_str(), name.c_str(), H5P_DEFAULT), "look up attribute", name) > 0;
}

int64_t Hdf5File::read_int(const std::string& object, const std::string& name) const {
  return Access{*this}.read_one<int64_t>(object, name, H5T_NATIVE_INT64, H5T_INTEGER, "an integer");
}

double Hdf5File::read_double(const std::string& object, const std::string& name) const {
  return Access{*this}.read_one<double>(object, name, H5T_NATIVE_DOUBLE, H5T_FLOAT, "a number");
}

std::vector<int64_t> Hdf5File::read_ints(const std::string& object, const std::string& name) const {
  const Access h5{*this};
  const Handle attribute = h5.attribute(object, name);
  const int64_t count = h5.check_attribute(attribute, name, H5T_INTEGER, H5T_INTEGER, "integers");
  std::vector<int64_t> values(static_cast<size_t>(count));
  if (count > 0) h5(H5Aread(attribute, H5T_NATIVE_INT64, values.data()), "read attribute", name);
  return values;
}

std::string Hdf5File::read_string(const std::string& object, const std::string& name) const {
  const Access h5{*this};
  const Handle attribute = h5.attribute(object, name);
  const int64_t count = h5.check_attribute(attribute, name, H5T_STRING, H5T_STRING, "a string");
  CHECK_CODE(h5.code, count == 1, "{}: attribute {} must be one string, not {}", path_, name, count);
  // The stored type is also the one in memory: its character set must be the same.
  const Handle type(h5(H5Aget_type(attribute), "read attribute", name));
  if (H5Tis_variable_str(type) > 0) {
    char* text = nullptr;
    h5(H5Aread(attribute, type, &text), "read attribute", name);
    std::string value = text == nullptr ? "" : text;
    H5free_memory(text);
    return value;
  }
  std::string value(H5Tget_size(type), '\0');
  h5(H5Aread(attribute, type, value.data()), "read attribute", name);
  value.resize(std::min(value.find('\0'), value.size()));
  if (H5Tget_strpad(type) == H5T_STR_SPACEPAD) value.resize(value.find_last_not_of(' ') + 1);
  return value;
}

void Hdf5File::write_int(const std::string& object, const std::string& name, int64_t value) {
  Access{*this}.write_attribute(object, name, H5T_NATIVE_INT64, &value);
}

void Hdf5File::write_double(const std::string& object, const std::string& name, double value) {
  Access{*this}.write_attribute(object, name, H5T_NATIVE_DOUBLE, &value);
}

void Hdf5File::write_string(const std::string& object, const std::string& name, const std::string& value) {
  const Access h5{*this};
  const Handle type(H5Tcopy(H5T_C_S1));
  const bool good = H5Tset_size(type, H5T_VARIABLE) >= 0 && H5Tset_cset(type, H5T_CSET_UTF8) >= 0;
  CHECK(good, "HDF5 cannot describe a string: {}", library_error());
  const char* text = value.c_str();
  h5.write_attribute(object, name, type, &text);
}

}  // namespace baton
