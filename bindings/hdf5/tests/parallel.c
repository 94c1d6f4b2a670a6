/* Ranks of parallel HDF5 write one dataset through the filter, collectively, chunks shared by ranks among
 * them, and read it back.  usage: parallel FILE */
#include <hdf5.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 1000
#define COLUMNS 300
#define FILTER 32768
#define BOUND 0.01

static float value(hsize_t row, hsize_t column)
{
	return (float)(280 + 20 * sin(row / 90.0) * cos(column / 40.0) + 0.05 * ((row * 7919 + column * 104729) % 101) / 101);
}

#define CHECK(what)                                                                                                    \
	do {                                                                                                           \
		if ((what) < 0) {                                                                                      \
			fprintf(stderr, "rank %d: %s failed\n", rank, #what);                                          \
			MPI_Abort(MPI_COMM_WORLD, 1);                                                                  \
		}                                                                                                      \
	} while (0)

int main(int argc, char **argv)
{
	int rank, ranks;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc != 2)
		MPI_Abort(MPI_COMM_WORLD, 2);

	hid_t access = H5Pcreate(H5P_FILE_ACCESS);
	CHECK(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL));
	hid_t file = H5Fcreate(argv[1], H5F_ACC_TRUNC, H5P_DEFAULT, access);
	CHECK(file);

	/* Rows of a rank end within chunks of 64, so that ranks share chunks. */
	hsize_t shape[2] = {ROWS, COLUMNS}, chunk[2] = {64, 128};
	hsize_t first = (hsize_t)ROWS * rank / ranks, last = (hsize_t)ROWS * (rank + 1) / ranks;
	hsize_t start[2] = {first, 0}, count[2] = {last - first, COLUMNS};
	hid_t space = H5Screate_simple(2, shape, NULL), memory = H5Screate_simple(2, count, NULL);
	CHECK(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL));
	hid_t transfer = H5Pcreate(H5P_DATASET_XFER);
	CHECK(H5Pset_dxpl_mpio(transfer, H5FD_MPIO_COLLECTIVE));

	float *values = malloc(count[0] * COLUMNS * sizeof *values);
	double bound = BOUND;
	unsigned halves[2];
	memcpy(halves, &bound, sizeof bound);
	unsigned exact[1] = {1}, close[3] = {1 | 1u << 16, halves[0], halves[1]};
	for (int lossy = 0; lossy < 2; lossy++) {
		const char *name = lossy ? "close" : "exact";
		hid_t create = H5Pcreate(H5P_DATASET_CREATE);
		CHECK(H5Pset_chunk(create, 2, chunk));
		CHECK(H5Pset_filter(create, FILTER, H5Z_FLAG_MANDATORY, lossy ? 3 : 1, lossy ? close : exact));
		hid_t dataset = H5Dcreate2(file, name, H5T_IEEE_F32LE, space, H5P_DEFAULT, create, H5P_DEFAULT);
		CHECK(dataset);
		for (hsize_t i = 0; i < count[0] * COLUMNS; i++)
			values[i] = value(first + i / COLUMNS, i % COLUMNS);
		CHECK(H5Dwrite(dataset, H5T_NATIVE_FLOAT, memory, space, transfer, values));
		CHECK(H5Fflush(file, H5F_SCOPE_GLOBAL));
		memset(values, 0, count[0] * COLUMNS * sizeof *values);
		CHECK(H5Dread(dataset, H5T_NATIVE_FLOAT, memory, space, transfer, values));
		double worst = 0;
		for (hsize_t i = 0; i < count[0] * COLUMNS; i++)
			worst = fmax(worst, fabs((double)values[i] - value(first + i / COLUMNS, i % COLUMNS)));
		if (worst > (lossy ? BOUND : 0)) {
			fprintf(stderr, "rank %d: %s is off by %g\n", rank, name, worst);
			MPI_Abort(MPI_COMM_WORLD, 3);
		}
		if (rank == 0)
			printf("%s %llu of %zu\n", name, (unsigned long long)H5Dget_storage_size(dataset),
			       (size_t)ROWS * COLUMNS * sizeof *values);
		CHECK(H5Dclose(dataset));
		CHECK(H5Pclose(create));
	}
	CHECK(H5Fclose(file));
	free(values);
	MPI_Finalize();
	return 0;
}
