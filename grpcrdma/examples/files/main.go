// Command files is a file store: files serve ADDR DIRECTORY, files put ADDR FILE, files get ADDR NAME >FILE.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/grpcrdma"
	"github.com/rpcrdma/rpcrdma/grpcrdma/examples/files/pb"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

// chunkSize is how much of a file one message holds, in bytes. The adapter places it, so it is not copied between the
// sender's buffer and the receiver's write.
const chunkSize = 16 << 20

// messages allows messages of that length at either end.
var messages = grpcrdma.MaxRecvMsgSize(chunkSize + 1<<10)

// store keeps files in a directory. File names cannot escape it.
type store struct {
	pb.UnimplementedFilesServer
	dir *os.Root
}

// Put implements pb.FilesServer.
func (s *store) Put(stream pb.Files_PutServer) error {
	c, err := stream.Recv()
	if err != nil {
		return err
	}
	f, err := s.dir.Create(c.Name)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	defer f.Close()
	var size pb.Size
	for ; err == nil; c, err = stream.Recv() {
		n, err := f.Write(c.Data)
		if size.Bytes += int64(n); err != nil {
			return err
		}
	}
	if err != io.EOF {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return stream.SendAndClose(&size)
}

// Get implements pb.FilesServer.
func (s *store) Get(name *pb.Name, stream pb.Files_GetServer) error {
	f, err := s.dir.Open(name.Name)
	if err != nil {
		return status.Error(codes.NotFound, err.Error())
	}
	defer f.Close()
	return chunks(f, func(data []byte) error { return stream.Send(&pb.Chunk{Data: data}) })
}

// chunks passes the data of r to send, always in the same buffer: Send returns after the data has arrived.
func chunks(r io.Reader, send func(data []byte) error) error {
	buf := make([]byte, chunkSize)
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			if err := send(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// newServer returns a server of the files in dir. The caller keeps owning dir.
func newServer(dir *os.Root) *grpcrdma.Server {
	srv := grpcrdma.NewServer(messages)
	pb.RegisterFilesServer(srv, &store{dir: dir})
	return srv
}

// put sends a file and returns its length at the server, in bytes.
func put(ctx context.Context, c pb.FilesClient, name string, r io.Reader) (int64, error) {
	stream, err := c.Put(ctx)
	if err != nil {
		return 0, err
	}
	// The first chunk is empty, so an empty file has one too. If the stream ends early, Send returns io.EOF and
	// CloseAndRecv returns the reason.
	if err = stream.Send(&pb.Chunk{Name: name}); err == nil {
		err = chunks(r, func(data []byte) error { return stream.Send(&pb.Chunk{Data: data}) })
	}
	if err != nil && err != io.EOF {
		return 0, err
	}
	size, err := stream.CloseAndRecv()
	return size.GetBytes(), err
}

// get writes a file to w.
func get(ctx context.Context, c pb.FilesClient, name string, w io.Writer) error {
	stream, err := c.Get(ctx, &pb.Name{Name: name})
	if err != nil {
		return err
	}
	for {
		c, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := w.Write(c.Data); err != nil {
			return err
		}
	}
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: serve ADDR DIRECTORY | put ADDR FILE | get ADDR NAME >FILE")
	}
	ctx, provider, addr, name := context.Background(), iwarp.New(iwarp.Config{}), os.Args[2], os.Args[3]
	if os.Args[1] == "serve" {
		dir, err := os.OpenRoot(name)
		check(err)
		srv := newServer(dir)
		l, err := srv.Listen(ctx, provider, addr)
		check(err)
		fmt.Println("listening on", l.Addr())
		check(srv.Serve(l))
		return
	}
	cc, err := grpcrdma.Dial(ctx, provider, addr, messages)
	check(err)
	defer cc.Close()
	c := pb.NewFilesClient(cc)
	switch os.Args[1] {
	case "put":
		f, err := os.Open(name)
		check(err)
		size, err := put(ctx, c, filepath.Base(name), f)
		check(err)
		fmt.Println(size, "bytes")
	case "get":
		check(get(ctx, c, name, os.Stdout))
	default:
		log.Fatal("no such command: ", os.Args[1])
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
