import java.io.FileOutputStream;
import java.security.cert.X509Certificate;
import javax.net.ssl.*;

/** Shake PORT COUNT FILE: so many handshakes with Java's own TLS, and syncs of a file; then waits for the end of stdin. */
public class Shake {
    public static void main(String[] args) throws Exception {
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, new TrustManager[] {new X509TrustManager() {
            public void checkClientTrusted(X509Certificate[] chain, String type) {}
            public void checkServerTrusted(X509Certificate[] chain, String type) {}
            public X509Certificate[] getAcceptedIssuers() { return new X509Certificate[0]; }
        }}, null);
        for (int i = 0; i < Integer.parseInt(args[1]); i++) {
            try (SSLSocket socket = (SSLSocket) context.getSocketFactory().createSocket("127.0.0.1", Integer.parseInt(args[0]));
                    FileOutputStream file = new FileOutputStream(args[2])) {
                socket.startHandshake();
                file.write(new byte[1 << 16]);
                file.getFD().sync();
            }
        }
        System.out.println("done");
        System.in.read();
    }
}
