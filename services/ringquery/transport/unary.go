package transport

import (
	"context"
	"slices"

	"google.golang.org/grpc"
)

// streamed registers services so that the interceptors of streams run for unary methods, too. gRPC reads and decodes the request of a unary
// method before its interceptors run, and that of a stream only when an interceptor or the handler asks for it. Clients see no difference.
type streamed struct {
	grpc.ServiceRegistrar

	interceptors []grpc.StreamServerInterceptor
}

// RegisterService implements grpc.ServiceRegistrar.
func (s streamed) RegisterService(desc *grpc.ServiceDesc, impl any) {
	all := *desc
	all.Methods, all.Streams = nil, slices.Clone(desc.Streams)

	for _, method := range desc.Methods {
		all.Streams = append(all.Streams, grpc.StreamDesc{
			StreamName: method.MethodName, Handler: s.handler(method, &grpc.StreamServerInfo{FullMethod: "/" + desc.ServiceName + "/" + method.MethodName}),
		})
	}

	s.ServiceRegistrar.RegisterService(&all, impl)
}

// handler returns the handler of a unary method, with the interceptors. gRPC calls it directly.
func (s streamed) handler(method grpc.MethodDesc, info *grpc.StreamServerInfo) grpc.StreamHandler {
	handler := func(srv any, stream grpc.ServerStream) error {
		response, err := method.Handler(srv, stream.Context(), stream.RecvMsg, direct)
		if err != nil {
			return err //nolint:wrapcheck // a status already
		}

		return stream.SendMsg(response)
	}

	for _, intercept := range slices.Backward(s.interceptors) {
		next := handler
		handler = func(srv any, stream grpc.ServerStream) error { return intercept(srv, stream, info, next) }
	}

	return handler
}

// direct is an interceptor that does nothing.
func direct(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return handler(ctx, req)
}

// isUnary reports whether a method has one request and one response.
func isUnary(info *grpc.StreamServerInfo) bool { return !info.IsClientStream && !info.IsServerStream }
