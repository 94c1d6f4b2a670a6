/* What HDF5 calls. The address that a call returns to lies in the HDF5 that made it: a process may hold
 * several copies, and symbols of the wrong one fail. Rust cannot read that address. */
#include <stddef.h>
#include <stdint.h>

int narrows_hdf5_can_apply_from(void *caller, int64_t plist, int64_t type);
int narrows_hdf5_set_local_from(void *caller, int64_t plist, int64_t type);
size_t narrows_hdf5_filter_from(void *caller, unsigned flags, size_t count, const unsigned *words,
                                size_t len, size_t *room, void **bytes);

int narrows_hdf5_can_apply(int64_t plist, int64_t type, int64_t space)
{
	(void)space;
	return narrows_hdf5_can_apply_from(__builtin_return_address(0), plist, type);
}

int narrows_hdf5_set_local(int64_t plist, int64_t type, int64_t space)
{
	(void)space;
	return narrows_hdf5_set_local_from(__builtin_return_address(0), plist, type);
}

size_t narrows_hdf5_filter(unsigned flags, size_t count, const unsigned *words, size_t len, size_t *room, void **bytes)
{
	return narrows_hdf5_filter_from(__builtin_return_address(0), flags, count, words, len, room, bytes);
}
