"""The limit on BLAS threads is the process's: rules that run at the same time share it."""

from threadpoolctl import threadpool_info, threadpool_limits

from dure.aggregation.kernels.threads import one_blas_thread


def threads():
    return {lib["filepath"]: lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}


def test_the_last_one_out_restores_what_the_first_one_found():
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        first, second = one_blas_thread(), one_blas_thread()
        first.__enter__()
        inside = threads()
        second.__enter__()
        first.__exit__(None, None, None)  # as another Python thread leaves, in no order
        assert threads() == inside
        second.__exit__(None, None, None)
        assert threads() == before != inside
