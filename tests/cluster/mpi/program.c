/* An MPI program for tests: all ranks sum up their numbers, then do what the words say.
   sum | fail RANK CODE | leave | wait */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t asked, ending;

static void on_usr1(int number) { (void)number; asked = 1; }
static void on_term(int number) { (void)number; ending = 1; }

int main(int count, char **words)
{
    int rank, size, mine, sum = 0, any = 0;
    const char *what = count > 1 ? words[1] : "sum", *node = getenv("SLURMD_NODENAME");
    signal(SIGUSR1, on_usr1);
    signal(SIGTERM, on_term);
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    mine = rank + 1;
    MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d sum %d as %s of %s on %s\n", rank, size, sum, getenv("RANK"), getenv("WORLD_SIZE"), node ? node : "-");
    fflush(stdout);
    if (strcmp(what, "fail") == 0) {
        if (rank == atoi(words[2])) {
            fprintf(stderr, "rank %d gives up\n", rank);
            exit(atoi(words[3]));
        }
        sleep(120);
    }
    while (strcmp(what, "wait") == 0 && !ending) usleep(50000);
    while (strcmp(what, "leave") == 0 && !any) {
        int me = asked;
        MPI_Allreduce(&me, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        usleep(50000);
    }
    if (ending) {
        sleep(1); /* a grace that is kept leaves a word */
        printf("ended in peace\n");
        fflush(stdout);
    }
    MPI_Finalize();
    return any ? 75 : 0;
}
