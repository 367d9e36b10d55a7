package edge;

import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.cloud.gateway.filter.ratelimit.KeyResolver;
import org.springframework.context.annotation.Bean;
import reactor.core.publisher.Mono;

/** Spring Cloud Gateway as its documentation has it: one route, whose requests RedisRateLimiter limits. Settings come by arguments. */
@SpringBootApplication
public class Edge {
    public static void main(String[] args) {
        SpringApplication.run(Edge.class, args);
    }

    @Bean
    KeyResolver user() {
        return exchange -> Mono.just(exchange.getRequest().getQueryParams().getFirst("user"));
    }
}
