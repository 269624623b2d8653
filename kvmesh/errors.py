"""The errors that a caller may see: gRPC status, HTTP code and google.rpc details in one."""

from collections.abc import Iterable
from typing import Any, NoReturn, cast

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

Code = grpc.StatusCode

HTTP_CODES: dict[grpc.StatusCode, int] = {
    Code.INVALID_ARGUMENT: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.FAILED_PRECONDITION: 409,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.CANCELLED: 499,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}


class RequestError(Exception):
    """A request that ends with a status other than OK, for a reason that the caller is told.

    `field` is the path of the wrong field for INVALID_ARGUMENT and UNIMPLEMENTED;
    `retry_after` is in seconds.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        field: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.retry_after = retry_after

    @property
    def http_code(self) -> int:
        return HTTP_CODES.get(self.code, 500)

    def to_status(self) -> grpc.Status:
        """The status with its details, for `context.abort_with_status`."""
        status: grpc.Status = rpc_status.to_status(self.to_proto())
        return status

    def to_proto(self) -> status_pb2.Status:
        """The status with `BadRequest` and `RetryInfo` details."""
        details = []
        if self.field is not None:
            violation = error_details_pb2.BadRequest.FieldViolation(
                field=self.field, description=self.message
            )
            details.append(_any(error_details_pb2.BadRequest(field_violations=[violation])))
        if self.retry_after is not None:
            delay = duration_pb2.Duration()
            delay.FromMicroseconds(int(self.retry_after * 1e6))
            details.append(_any(error_details_pb2.RetryInfo(retry_delay=delay)))
        number = code_pb2.Code.Value(self.code.name)
        return status_pb2.Status(code=number, message=self.message, details=details)


def _any(message: error_details_pb2.BadRequest | error_details_pb2.RetryInfo) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def invalid(field: str, problem: str) -> RequestError:
    """INVALID_ARGUMENT. `problem` gives the bound and the value: "must be at most 16, is 17"."""
    return RequestError(Code.INVALID_ARGUMENT, f"{field}: {problem}", field=field)


def unimplemented(field: str, problem: str) -> RequestError:
    """UNIMPLEMENTED: a documented feature that this version does not serve."""
    return RequestError(Code.UNIMPLEMENTED, f"{field}: {problem}", field=field)


def exhausted(message: str, retry_after: float) -> RequestError:
    """RESOURCE_EXHAUSTED: full now, come back in `retry_after` seconds."""
    return RequestError(Code.RESOURCE_EXHAUSTED, message, retry_after=retry_after)


def unavailable(message: str) -> RequestError:
    """UNAVAILABLE: nobody there who could serve it."""
    return RequestError(Code.UNAVAILABLE, message)


def from_rpc_error(error: grpc.RpcError) -> RequestError:
    """The RequestError that a peer raised, field and retry time read from its status details."""
    # What a stub raises is a call too, in grpc and grpc.aio; only grpc.aio's does not say so.
    status = rpc_status.from_call(cast(grpc.Call, error))
    return _read(error.code(), error.details() or "", status.details if status is not None else ())


def from_proto(status: status_pb2.Status) -> RequestError:
    """The RequestError that `to_proto` has described."""
    code = grpc.StatusCode[code_pb2.Code.Name(status.code)]
    return _read(code, status.message, status.details)


def _read(code: grpc.StatusCode, message: str, details: Iterable[any_pb2.Any]) -> RequestError:
    field = retry_after = None
    for detail in details:
        bad, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if detail.Unpack(bad) and bad.field_violations:
            field = bad.field_violations[0].field
        elif detail.Unpack(retry):
            retry_after = retry.retry_delay.ToMicroseconds() / 1e6
    return RequestError(code, message, field=field, retry_after=retry_after)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: RequestError) -> NoReturn:
    """Ends an aio RPC with `error`'s status and details."""
    await context.abort_with_status(error.to_status())
    raise AssertionError("abort_with_status always raises")
