package pieces_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/rpcrdma/rpcrdma/rpc/pieces"
)

// A client has a method that reads at an offset, such as a generated one. Here it is that of a string.
func ExampleNewReader() {
	object := strings.NewReader("an object that has more bytes than a message")
	r := pieces.NewReader(context.Background(), func(ctx context.Context, p []byte, off int64) (int, error) {
		return object.ReadAt(p, off)
	}, pieces.Options{Size: 8})
	defer r.Close()
	n, err := io.Copy(os.Stdout, r)
	fmt.Println()
	fmt.Println(n, err)
	// Output:
	// an object that has more bytes than a message
	// 44 <nil>
}
