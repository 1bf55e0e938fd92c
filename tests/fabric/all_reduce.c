/* An all-reduce over MPI that prints as nccl-tests does, for hosts without a GPU. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BYTES = 64 << 20, COUNT = BYTES / 4, NAME = 64 };

/* Hosts are told apart by the address of their own network. */
static void address(char *name) {
  struct ifaddrs *all, *one;
  strcpy(name, "unknown");
  if (getifaddrs(&all)) return;
  for (one = all; one; one = one->ifa_next) {
    if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET && !strcmp(one->ifa_name, "eth0"))
      inet_ntop(AF_INET, &((struct sockaddr_in *)one->ifa_addr)->sin_addr, name, NAME);
  }
  freeifaddrs(all);
}

int main(int argc, char **argv) {
  int rank, ranks, wrong = 0, all_wrong = 0;
  char mine[NAME], *names;
  float *in = malloc(BYTES), *out = malloc(BYTES);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  names = malloc((size_t)ranks * NAME);
  address(mine);
  MPI_Gather(mine, NAME, MPI_CHAR, names, NAME, MPI_CHAR, 0, MPI_COMM_WORLD);
  for (int i = 0; i < COUNT; i++) in[i] = 1.0f;
  MPI_Barrier(MPI_COMM_WORLD);
  double began = MPI_Wtime();
  MPI_Allreduce(in, out, COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  double mine_s = MPI_Wtime() - began, took_s;
  for (int i = 0; i < COUNT; i++) wrong += out[i] != (float)ranks;
  MPI_Reduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
  MPI_Reduce(&mine_s, &took_s, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    double algbw = BYTES / took_s / 1e9, busbw = algbw * 2 * (ranks - 1) / ranks;
    printf("# nThread 1 nGpus 1 minBytes %d maxBytes %d step: 2(factor)\n#\n# Using devices\n",
           BYTES, BYTES);
    for (int r = 0; r < ranks; r++)
      printf("#  Rank %2d Group  0 Pid %6d on %s device  0 [0000:1a:00] none\n", r, r + 1,
             names + (size_t)r * NAME);
    printf("#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
           "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)\n"
           "%12d %13d     float     sum      -1 %8.1f %7.4f %7.4f %6d\n"
           "# Out of bounds values : %d %s\n# Avg bus bandwidth    : %g\n#\n",
           BYTES, COUNT, took_s * 1e6, algbw, busbw, all_wrong, all_wrong,
           all_wrong ? "FAILED" : "OK", busbw);
  }
  MPI_Finalize();
  return all_wrong != 0;
}
